-- Store messages of any kind: for send, publish, redrive_send and schedule_send.
--- @needs slot store records bodies
--- @include "lib/add"
--- @include "lib/check"
--- @include "lib/scores/counters"
--- @include "lib/member"
--- @include "lib/send/group_entrances"
--- @include "lib/records/record_bytes"
--- @include "lib/results/keep_mark"
--- @include "lib/scores/score"
--- @include "lib/send/send_status"
--- @include "lib/slot_fields"

-- Return two lists by position: the record if the message is already in the slot, and 1 if the
-- message was settled within the dedup window. The second list is nil if no message was settled.
--- @inline
local function find_stored(batch, fields, now)
  local given, first, last = batch.given, batch.at + 1, batch.at + batch.count
  local stored = redis.call('HMGET', records, unpack(given, first, last))
  local window = tonumber(fields[DEDUP_MS])
  if window == 0 then
    return stored, nil
  end
  --- @include "lib/send/dedup_window"
  local settled = find_settled(window, tonumber(fields[SETTLED_TURN]), now, given, first, last)
  return stored, settled
end

-- Return the set of the ids before a position.
--- @inline
local function ids_before(batch, position)
  local seen = {}
  for i = 1, position - 1 do
    seen[batch.given[batch.at + i]] = true
  end
  return seen
end

-- Return the set of the positions of duplicates; nil if there is none.
--- @inline
local function find_duplicates(batch, fields, now)
  local stored, settled = find_stored(batch, fields, now)
  local given, at, last_id, seen, duplicates = batch.given, batch.at, '', nil, nil
  local ended = batch.ended
  for i = 1, batch.count do
    local id = given[at + i]
    if #id ~= MEMBER then
      fail('ARG', 'id')
    end
    local is_duplicate = stored[i] or settled and settled[i] == 1 or ended and ended[i]
    if seen or id <= last_id then
      -- Ids of one producer grow, so each is new. All other ids are compared.
      if not seen then
        seen = ids_before(batch, i)
      end
      is_duplicate = is_duplicate or seen[id]
      seen[id] = true
    end
    last_id = id
    if is_duplicate then
      duplicates = duplicates or {}
      duplicates[i] = true
    end
  end
  return duplicates
end

-- Parse the head of a record. Note in the plan what messages with this head need.
--- @inline
local function read_head(head, plan, large)
  if #head ~= HEAD then
    fail('ARG', 'head')
  end
  local first_byte, priority = split_head(head)
  local flags = first_byte % CODEC_STEP
  if flags >= COLLECTS and not large then
    --- @include "lib/records/large_bodies"
    local needs_body = is_large(head)
    if needs_body then
      fail('BODY', bodies)
    end
  end
  local timed, expires = flags % 2 == TIMED, flags % 4 >= EXPIRES
  local has_priority = priority >= PRIORITY_MIN and priority < PRIORITY_END
  if not has_priority and (priority > 0 or not timed) then
    fail('ARG', 'priority')
  end
  plan.expires = plan.expires or expires
  plan.coded = plan.coded or first_byte >= CODED and first_byte < CODED_END
  plan.has_headers = plan.has_headers or flags >= HEADERS
  plan.at_once = plan.at_once or not timed
  if timed and not plan.score_of_time then
    --- @include "lib/scores/timed_score"
    plan.score_of_time = next_timed_score
  end
  return { priority = priority, timed = timed, expires = expires }
end

-- Return when a timed message is due. `rest`: its record from byte 9 on. A small number there is a
-- delay.
--- @inline
local function due_of(rest, now)
  local due = read48(rest, 1)
  return due < TIMED_MIN and now + due or due
end

-- Return the rest of a record, with times instead of delays. `due`: nil if the message has no time.
--- @inline
local function rest_with_times(rest, due, expires, now)
  if due and expires then
    local expiry = due + read48(rest, TIME_BYTES + 1)
    return write48(due) .. write48(expiry) .. string.sub(rest, 2 * TIME_BYTES + 1)
  elseif due then
    return write48(due) .. string.sub(rest, TIME_BYTES + 1)
  elseif expires then
    return write48(now + read48(rest, 1)) .. string.sub(rest, TIME_BYTES + 1)
  end
  return rest
end

-- Plan the writes for all messages that are not duplicates. Return the plan:
-- - count: number of messages
-- - accepted, order: the slot's counters after these messages
-- - scores: scores and ids in turn
-- - records: ids and records in turn
-- - earliest: when the first timed message is due, or nil
-- - at_once: whether some messages have no time
-- - expires, coded, has_headers: whether a message expires, may have an offloaded body, or has
--   headers
--
-- `enter`: nil, or a function that lets a message without a time into its group, and chooses its
-- score.
--- @inline
local function plan_entries(batch, fields, duplicates, now, enter)
  local given, at, heads_at = batch.given, batch.at, batch.at + batch.count - 1
  local accepted, order = tonumber(fields[ACCEPTED] or 0), tonumber(fields[ORDER] or 0)
  order = restarted_order(order)
  local kinds, count, scores, new_records, earliest = {}, 0, {}, {}, nil
  -- All fields are named here: a table that grows later is slower.
  local plan = {
    count = 0, accepted = accepted, order = order, scores = scores, records = new_records,
    earliest = nil, at_once = false, expires = false, coded = false, has_headers = false,
    score_of_time = nil,
  }
  for i = 1, batch.count do
    if not (duplicates and duplicates[i]) then
      local id, head, rest = given[at + i], given[heads_at + 2 * i], given[heads_at + 2 * i + 1]
      local kind, due, score = kinds[head], nil, nil
      if not kind then
        kind = read_head(head, plan, batch.large)
        kinds[head] = kind
      end
      if kind.timed then
        due = due_of(rest, now)
        earliest = math.min(earliest or due, due)
        score = plan.score_of_time(due, kind.priority > 0 and 1 or 0)
      elseif enter then
        enter(i, id, kind.priority)
      else
        order = order + 1
        score = ordered_text(kind.priority, order)
      end
      if score then
        scores[#scores + 1], scores[#scores + 2] = score, id
      end
      rest = rest_with_times(rest, due, kind.expires, now)
      count, accepted = count + 1, accepted + 1
      new_records[2 * count - 1], new_records[2 * count] =
        id, head .. struct.pack('>I4', accepted % ACCEPTED_CYCLE) .. rest
    end
  end
  plan.count, plan.accepted, plan.order, plan.earliest = count, accepted, order, earliest
  return plan
end

-- Return a letter for each message: s stored, d duplicate; '' if all are stored.
--- @inline
local function letters_of(count, duplicates)
  if not duplicates then
    return ''
  end
  local letters = {}
  for i = 1, count do
    letters[i] = duplicates[i] and 'd' or 's'
  end
  return table.concat(letters)
end

-- Return whether a plan fits into the slot; and nil, or a function that first makes room for it.
-- `excess`: number of messages above the capacity before the plan; negative: room.
--- @inline
local function plan_room(plan, excess, fields, now)
  if excess + plan.count <= 0 then
    return true, nil
  end
  if fields[OVERFLOW] ~= 'drop_lowest' or plan.count > tonumber(fields[CAPACITY]) then
    return false, nil
  end
  --- @include "lib/send/plan_drop_lowest"
  local drop_lowest = plan_drop_lowest(excess + plan.count, plan.records, now)
  return drop_lowest ~= nil, drop_lowest
end

-- Store new messages in a slot. Return the reply of send, and whether the caller must serve
-- sleeping consumers (serve_sleepers of lib/wake/hand_over). All reads and checks are before the
-- first write, which Redis refuses at maxmemory. A message whose time has passed is due at once.
--
-- - batch: `given` has, from at + 1 on, `count` ids, and then head and rest of each message.
--   `large`: whether messages may have large bodies. `ended`: nil, or the set of the positions of
--   members of batches that have ended
-- - fields: from read_store_fields
--- @inline
local function store_messages(batch, fields, now)
  local capacity, front = tonumber(fields[CAPACITY]), tonumber(fields[FRONT] or 0)
  local new_front = restarted_front(front)
  local excess = capacity > 0 and redis.call('ZCARD', store) - capacity
  local duplicates = find_duplicates(batch, fields, now)
  local enter, write_entries
  if fields[GROUPS] then
    local _, open_entrance = group_entrances()
    local given, heads_at = batch.given, batch.at + batch.count
    enter, write_entries = open_entrance(fields[GROUPS], nil, given, heads_at, batch.count, 2)
  end
  local plan = plan_entries(batch, fields, duplicates, now, enter)
  local letters = letters_of(batch.count, duplicates)
  if plan.count == 0 then
    return { plan.accepted, letters }, false
  end
  local fits, drop_lowest = true, nil
  if excess then
    fits, drop_lowest = plan_room(plan, excess, fields, now)
  end
  if not fits then
    return { 0, FULL }, false
  end
  local consumer_sleeps, first_due = fields[WAITING] and tonumber(fields[WAITING]) > now, nil
  if plan.earliest and consumer_sleeps then
    local first_timed =
      redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    first_due = first_timed[2]
  end

  -- The sorted set first: a wrong type there shows before anything is written.
  if #plan.scores > 0 then
    add_members(store, plan.scores, #plan.scores / 2)
  end
  if write_entries then
    plan.at_once = write_entries()
  end
  redis.call('HSET', records, unpack(plan.records))
  redis.call('HSET', slot, 'accepted', plan.accepted, 'order', plan.order)
  if plan.expires then
    redis.call('HDEL', slot, 'no_expiry')
  end
  if plan.coded then
    --- @include "lib/records/note_offloaded"
    note_offloaded(plan.records)
  end
  if plan.has_headers and not fields[OUTCOMES] then
    --- @include "lib/results/note_marks"
    note_marks(plan.records)
  end
  if new_front ~= front then
    redis.call('HSET', slot, 'front', new_front)
  end
  if drop_lowest then
    drop_lowest()
  end
  local is_sooner = plan.at_once or not first_due or plan.earliest < tonumber(first_due)
  return { plan.accepted, letters }, consumer_sleeps and is_sooner
end
