-- Picking the messages that a take takes. Nothing is removed here.
--- @needs slot store records failures
--- @include "lib/bounds"
--- @include "lib/scores/counters"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"
--- @include "lib/slot_fields"
--- @include "lib/take/turns"

-- Note the retries that remain to messages of a batch that have failed before; `before`: how many messages were picked before it.
--- @inline
local function note_retries_left(batch, before, retries_left, max_retries)
  --- @include "lib/settle/failures"
  retries_left = retries_left or {}
  local entries = redis.call('HMGET', failures, unpack(batch))
  for i = 1, #entries do
    retries_left[before + i] = entries[i] and retries_in(entries[i], max_retries) or nil
  end
  return retries_left
end

-- Pick due messages. One that has a priority does not go at once: it joins its priority as the newest there. So does one without
-- a priority, where `timed_priority` of the topic says which one it joins. At most MOST join in one call, and fewer
-- their groups. `page`: the first due messages with their scores; `past`: the end of their range. Returns the ids, and how
-- many joined their priority.
--- @inline
local function pick_due(fields, page, past, limit)
  --- @include "lib/records/record_bytes"
  --- @include "lib/scores/score"
  --- @include "lib/scores/timed_score"
  --- @include "lib/writes"
  local DUE_PAGE = 100 -- of further pages: where many join, a page of what is still missing would be one message
  local ids, joining, bytes, seen, full = {}, {}, 0, 0, false
  local most = fields[GROUPED] and GROUPED_MOST or MOST -- that join
  local timed_priority = tonumber(fields[TIMED_PRIORITY] or 0)
  local order = restarted_order(tonumber(fields[ORDER] or 0))
  local enter, write_heads
  if fields[GROUPED] then
    --- @include "lib/groups/enter_groups"
    enter, write_heads = returning_groups(fields[GROUPED])
  end
  while #page > 0 and not full do
    for i = 1, #page, 2 do
      local id, score, priority = page[i], tonumber(page[i + 1]), 0
      local _, has_priority = timed_fraction(score)
      local record = nil
      if has_priority == 1 and score >= TIMED_MIN or enter then
        record = redis.call('HGET', records, id) or ''
        bytes = bytes + #record
        priority = #record >= FIXED and priority_of(record) or 0
      end
      priority = priority > 0 and priority or timed_priority
      if enter then
        joining[#joining + 1], joining[#joining + 2] = 0, id -- counted; enter chooses the score
        enter(record, id, priority > 0 and priority or PRIORITY_MIN)
      elseif priority == 0 then
        ids[#ids + 1] = id
      else
        order = order + 1
        joining[#joining + 1], joining[#joining + 2] = ordered_score(priority, order), id
      end
      full = #ids >= limit or #joining >= 2 * most or bytes >= READ_BYTES
      if full then
        break
      end
    end
    if not full then
      seen = seen + #page / 2
      page = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, past, 'WITHSCORES', 'LIMIT', seen, DUE_PAGE)
    end
  end
  if #joining > 0 then
    allow_oom(store)
    if enter then
      write_heads()
    else
      redis.call('ZADD', store, unpack(joining))
      redis.call('HSET', slot, 'order', order)
    end
  end
  return ids, #joining / 2
end

-- Pick messages of priorities in a slot whose counters have gone beyond what a score can order. Messages that came after that share
-- the lowest score of their priority, and those handed back the highest. Read from above, as all priorities are, equal scores
-- come with the largest id first; here they come with the smallest, which is the oldest where producers make the ids. Every turn
-- of the loop picks one message at least.
--- @inline
local function pick_tied(limit)
  local TIES_PAGE = 20
  local ids, bound, room = {}, BELOW_PRIORITY_END, limit
  while room > 0 do
    local page = redis.call('ZREVRANGEBYSCORE', store, bound, PRIORITY_MIN, 'WITHSCORES', 'LIMIT', 0, math.min(room, TIES_PAGE))
    if #page == 0 then
      break
    end
    for i = 1, #page, 2 do
      bound = '(' .. page[i + 1]
      local score = tonumber(page[i + 1])
      local integer = math.floor(score)
      local _, exponent = math.frexp(integer)
      if score == integer or score == integer + 1 - math.ldexp(1, exponent - 53) then
        local tied = redis.call('ZRANGEBYSCORE', store, page[i + 1], page[i + 1], 'LIMIT', 0, room)
        for t = 1, #tied do
          ids[#ids + 1] = tied[t]
        end
        break
      end
      ids[#ids + 1] = page[i]
      room = room - 1
    end
    room = limit - #ids
  end
  return ids
end

-- Pick messages of priorities, and return whether they are in the order of their scores.
--- @inline
local function pick_priorities(fields, limit)
  local is_sorted, ids = tonumber(fields[ORDER] or 0) < ORDER_END and tonumber(fields[FRONT] or 0) > -ORDER_END, nil
  if is_sorted then
    ids = redis.call('ZREVRANGEBYSCORE', store, BELOW_PRIORITY_END, PRIORITY_MIN, 'LIMIT', 0, limit)
  else
    ids = pick_tied(limit)
  end
  return ids, is_sorted
end

-- Pick retries, with their scores in turn: those with the most deliveries left, or with the fewest. These stand behind all that
-- failed for the first time, and a steady stream of those would starve them. Of each number the oldest comes first.
--- @inline
local function pick_retries(limit, fewest)
  local batch = redis.call('ZREVRANGEBYSCORE', store, BELOW_PRIORITY_MIN, 0, 'WITHSCORES', 'LIMIT', 0, limit)
  if #batch > 0 and fewest then
    batch = {}
    for left = 1, PRIORITY_MIN - 1 do
      local room = limit - #batch / 2
      if room < 1 then
        break
      end
      local level = redis.call('ZREVRANGEBYSCORE', store, string.format('(%d', left + 1), left, 'WITHSCORES', 'LIMIT', 0, room)
      for i = 1, #level do
        batch[#batch + 1] = level[i]
      end
    end
  end
  return batch
end

-- Pick the messages that go next: (their ids; false, or by position the retries that remain to those that have failed before; that
-- so many of the first are the highest below the due and timed ones; how many due messages have joined their priority). Due
-- messages go first, the earliest first; then priorities, the larger first; then retries, the larger first; but see lib/take/turns.
-- A take that begins with the priorities looks at what is due all the same: some of it may have to join them. `none_due`: the
-- caller has seen that nothing is due.
--- @inline
local function pick_messages(fields, takes, limit, ordered, any_failed, none_due, now)
  local ids, retries_left, on_top, promoted, max_retries = {}, false, 0, 0, tonumber(fields[MAX_RETRIES])
  local due, due_retries_left = {}, false -- these go behind the priorities
  for turn = 1, 3 do
    local family = (ordered or takes % TURNS == 0) and (turn + 1) % 3 + 1 or turn
    local n = #ids
    if n >= limit then
      break
    end
    if family == 1 then
      local past, page = string.format('(%.0f', now + 1), nil
      page = none_due and {} or redis.call('ZRANGEBYSCORE', store, PRIORITY_END, past, 'WITHSCORES', 'LIMIT', 0, limit - n)
      if #page > 0 then
        local batch
        batch, promoted = pick_due(fields, page, past, limit - n)
        if takes % TURNS == PRIORITIES_TURN and not ordered then
          due = batch
          if any_failed and #due > 0 then
            due_retries_left = note_retries_left(due, 0, due_retries_left, max_retries)
          end
        else
          if any_failed and #batch > 0 then
            retries_left = note_retries_left(batch, n, retries_left, max_retries)
          end
          for i = 1, #batch do
            ids[n + i] = batch[i]
          end
        end
      end
    elseif family == 2 then
      local batch, is_sorted = pick_priorities(fields, limit - n)
      if any_failed and #batch > 0 then
        retries_left = note_retries_left(batch, n, retries_left, max_retries)
      end
      if n == 0 then
        ids, on_top = batch, is_sorted and #batch or 0
      else
        for i = 1, #batch do
          ids[n + i] = batch[i]
        end
      end
      for i = 1, math.min(#due, limit - #ids) do
        ids[#ids + 1] = due[i]
        if due_retries_left and due_retries_left[i] then
          retries_left = retries_left or {}
          retries_left[#ids] = due_retries_left[i]
        end
      end
    else
      local batch = pick_retries(limit - n, takes % FEWEST_EVERY == 0 and not ordered)
      if #batch > 0 then
        retries_left = retries_left or {}
        for i = 1, #batch / 2 do
          ids[n + i] = batch[2 * i - 1]
          retries_left[n + i] = math.max(0, math.min(max_retries, math.floor(tonumber(batch[2 * i])) - 1))
        end
      end
    end
  end
  return ids, retries_left, on_top, promoted
end
