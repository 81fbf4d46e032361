-- Picking the messages for a take. These functions remove no message. But due messages may move
-- within the StoreQueue.
--- @needs slot store records failures
--- @include "lib/bounds"
--- @include "lib/scores/counters"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"
--- @include "lib/slot_fields"
--- @include "lib/take/take_order"
-- Due messages in each further page. If many messages join, a page for the missing number would be
-- tiny.
local DUE_PAGE = 100

-- Write the scores of due messages that joined their priority, also while Redis is at maxmemory.
-- `write_entries`: nil, or a function that writes the groups and the scores.
--- @inline
local function write_joined(write_entries, new_scores, order)
  --- @include "lib/writes"
  allow_oom(store)
  if write_entries then
    write_entries()
  else
    redis.call('ZADD', store, unpack(new_scores))
    redis.call('HSET', slot, 'order', order)
  end
end

-- Return due messages to take, how many due messages joined their priority, and whether it stopped
-- before others. A due message with a priority is not taken at once: it joins its priority as the
-- newest message there. A due message without a priority joins the topic's `timed_priority`, if the
-- topic has it. In a slot with groups, all due messages join. A call stops after JOIN_MOST messages
-- (with groups GROUPED_MOST) that join or whose record it reads, because more would take too long.
-- With limits for each key, it stops after MOST, because the take passes over messages.
-- - page: first due messages with their scores
-- - past: end of the range of due messages
--- @inline
local function due_messages(take, page, past, limit)
  --- @include "lib/records/record_bytes"
  --- @include "lib/scores/score_text"
  --- @include "lib/scores/timed_score"
  local fields = take.fields
  local may_still_join = fields[GROUPS] and GROUPED_MOST or take.key_limit and MOST or JOIN_MOST
  local timed_priority = tonumber(fields[TIMED_PRIORITY] or 0)
  local order = restarted_order(tonumber(fields[ORDER] or 0))
  local enter, write_entries, last_priority, step
  if fields[GROUPS] then
    enter, write_entries = take.group_functions()(fields[GROUPS])
  end

  -- Return the priority that a due message joins, 0 if none; and its record, nil if not read.
  --- @inline
  local function priority_when_due(id, score)
    local _, has_priority = timed_fraction(score)
    local record, priority = nil, 0
    if enter or has_priority == 1 and score >= TIMED_MIN then
      record = redis.call('HGET', records, id) or ''
      priority = #record >= FIXED and priority_of(record) or 0
    end
    return priority > 0 and priority or timed_priority, record
  end

  local ids, new_scores, joined, bytes = {}, {}, 0, 0 -- new_scores: scores and ids in turn
  local offset, is_full, is_cut = 0, false, false -- offset: of the page
  while #page > 0 and not is_full do
    for i = 1, #page, 2 do
      local id, score = page[i], tonumber(page[i + 1])
      local priority, record = priority_when_due(id, score)
      if record or priority > 0 then
        may_still_join, bytes = may_still_join - 1, bytes + #(record or '')
      end
      if priority > 0 and priority ~= last_priority then
        last_priority = priority
        step = score_step(priority)
      end
      if enter then -- it also chooses the score
        joined = joined + 1
        enter(record, id, priority > 0 and priority or PRIORITY_MIN)
      elseif priority == 0 then
        ids[#ids + 1] = id
      else
        order, joined = order + 1, joined + 1
        local new_score = score_at(priority, step, order)
        new_scores[#new_scores + 1], new_scores[#new_scores + 2] = new_score, id
      end
      is_cut = may_still_join == 0 or bytes >= READ_BYTES
      is_full = is_cut or #ids >= limit
      if is_full then
        break
      end
    end
    if not is_full then
      offset = offset + #page / 2
      page = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, past, 'WITHSCORES',
        'LIMIT', offset, DUE_PAGE)
    end
  end
  if joined > 0 then
    write_joined(write_entries, new_scores, order)
  end
  return ids, joined, is_cut
end

-- Append the messages with this score, at most `most`. The smallest id is first.
--- @inline
local function add_tied(ids, score, most)
  local tied = redis.call('ZRANGEBYSCORE', store, score, score, 'LIMIT', 0, most)
  for t = 1, #tied do
    ids[#ids + 1] = tied[t]
  end
end

-- Return messages of priorities from a slot whose counters are larger than a score can order. Later
-- messages share the lowest score of their priority, and messages that were given back the
-- highest. Redis lists equal scores from above with the largest id first. Here the smallest id is
-- first: it is the oldest message if producers make the ids.
--- @inline
local function tied_messages(limit)
  local TIES_PAGE = 20
  local ids, bound, room = {}, BELOW_PRIORITY_END, limit
  while room > 0 do -- each round finds at least one message
    local page = redis.call('ZREVRANGEBYSCORE', store, bound, PRIORITY_MIN, 'WITHSCORES',
      'LIMIT', 0, math.min(room, TIES_PAGE))
    if #page == 0 then
      break
    end
    for i = 1, #page, 2 do
      bound = '(' .. page[i + 1]
      local score = tonumber(page[i + 1])
      local integer = math.floor(score)
      local _, exponent = math.frexp(integer)
      if score == integer or score == integer + 1 - math.ldexp(1, exponent - 53) then
        add_tied(ids, page[i + 1], room)
        break
      end
      ids[#ids + 1] = page[i]
      room = room - 1
    end
    room = limit - #ids
  end
  return ids
end

-- Return messages of priorities, and whether they are in the order of their scores.
--- @inline
local function priority_messages(fields, limit)
  local order, front = tonumber(fields[ORDER] or 0), tonumber(fields[FRONT] or 0)
  if order < ORDER_END and front > -ORDER_END then
    local ids = redis.call('ZREVRANGEBYSCORE', store, BELOW_PRIORITY_END, PRIORITY_MIN,
      'LIMIT', 0, limit)
    return ids, true
  end
  local tied_ids = tied_messages(limit)
  return tied_ids, false
end

-- Return the retries that have the fewest deliveries left, ids and scores in turn. They sort behind
-- all messages that failed for the first time, and a steady stream of such messages would starve
-- them. Of retries with the same number of deliveries left, the oldest is first.
--- @inline
local function fewest_retries(limit)
  local page = {}
  for deliveries_left = 1, PRIORITY_MIN - 1 do
    local room = limit - #page / 2
    if room < 1 then
      break
    end
    local past = string.format('(%d', deliveries_left + 1)
    local found = redis.call('ZREVRANGEBYSCORE', store, past, deliveries_left, 'WITHSCORES',
      'LIMIT', 0, room)
    for i = 1, #found do
      page[#page + 1] = found[i]
    end
  end
  return page
end

-- Add the first `room` of these messages to a batch, with their remaining retries. `any_failed`:
-- whether a message of the slot has failed.
--- @inline
local function add_picked(batch, picked, room, max_retries, any_failed)
  local before = #batch.ids
  if any_failed and #picked > 0 then
    --- @include "lib/settle/failures"
    batch.retries_left = batch.retries_left or {}
    local entries = redis.call('HMGET', failures, unpack(picked))
    for i = 1, math.min(#picked, room) do
      local retries_left = entries[i] and retries_in(entries[i], max_retries) or nil
      batch.retries_left[before + i] = retries_left
    end
  end
  if before == 0 and #picked <= room then
    batch.ids = picked
  else
    for i = 1, math.min(#picked, room) do
      batch.ids[before + i] = picked[i]
    end
  end
end

-- Add retries to a batch: first retries with the most deliveries left or, with `fewest`, with the
-- fewest.
local function pick_retries(batch, limit, max_retries, fewest)
  local before = #batch.ids
  if before >= limit then
    return
  end
  local page = redis.call('ZREVRANGEBYSCORE', store, BELOW_PRIORITY_MIN, 0, 'WITHSCORES',
    'LIMIT', 0, limit - before)
  if #page == 0 then
    return
  end
  if fewest then
    page = fewest_retries(limit - before)
  end
  batch.retries_left = batch.retries_left or {}
  for i = 1, #page / 2 do
    local deliveries_left = math.floor(tonumber(page[2 * i]))
    batch.ids[before + i] = page[2 * i - 1]
    batch.retries_left[before + i] = math.max(0, math.min(max_retries, deliveries_left - 1))
  end
end

-- Pick the next messages: due messages, the earliest first; then priorities, the larger first; then
-- retries, the larger first. lib/take/take_order says which takes begin with retries or
-- priorities. A take that begins with priorities still looks for due messages first: some may have
-- to join a priority.
--
-- Returns a batch for take_messages. It has also
-- - on_top: how many of its first messages have the highest scores below due and timed messages
-- - due_first: how many of its first messages are the earliest due messages, without others between
-- - promoted: how many due messages joined their priority
-- - is_cut: whether there may be more due messages, which were not looked at; or nil
--- @inline
local function pick_messages(take, limit, any_failed)
  local fields, ordered, turn = take.fields, take.ordered, take.number % TURNS
  local retries_first = ordered or turn == 0
  take.max_retries = tonumber(fields[MAX_RETRIES])
  -- A larger table is slower. Few takes add the other fields.
  local batch = {
    ids = {}, records = false, count = 0, retries_left = false, any_large = false, more = false,
    on_top = 0, due_first = 0, promoted = 0,
  }
  if retries_first then
    local fewest = take.number % FEWEST_EVERY == 0 and not ordered
    pick_retries(batch, limit, take.max_retries, fewest)
  end
  local room, due = limit - #batch.ids, {}
  if room > 0 and not take.none_due then
    local past = string.format('(%.0f', take.now + 1)
    local page = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, past, 'WITHSCORES',
      'LIMIT', 0, room)
    if #page > 0 then
      local promoted, is_cut
      due, promoted, is_cut = due_messages(take, page, past, room)
      batch.promoted = promoted
      if is_cut then -- the other due messages go before what is behind these
        limit = math.min(limit, #batch.ids + #due + promoted)
        batch.is_cut = true
      end
    end
  end
  local due_last = turn == PRIORITIES_TURN and not ordered
  local prioritized, is_sorted = {}, false
  room = due_last and room or room - #due
  if room > 0 then
    prioritized, is_sorted = priority_messages(fields, room)
  end
  local first, second = due, prioritized
  if due_last then
    first, second = prioritized, due
  end
  if is_sorted and #batch.ids == 0 and (due_last or #due == 0) then
    batch.on_top = #prioritized
  end
  if #batch.ids == 0 and not due_last and batch.promoted == 0 then
    batch.due_first = #due
  end
  for nth = 1, 2 do -- not two calls: each call of an inline function repeats its lines
    local picked = nth == 1 and first or second
    add_picked(batch, picked, limit - #batch.ids, take.max_retries, any_failed)
  end
  if not retries_first then
    pick_retries(batch, limit, take.max_retries, false)
  end
  return batch
end
