-- Storing messages of any kind, for send, publish, redrive_send and schedule_send.
--- @needs slot store records bodies
--- @include "lib/add"
--- @include "lib/check"
--- @include "lib/scores/counters"
--- @include "lib/member"
--- @include "lib/records/record_bytes"
--- @include "lib/scores/score"
--- @include "lib/slot_fields"

-- Whether messages are here already, or were settled: a list of what HMGET gives for each, and nil or a list of 1 and 0.
--- @inline
local function find_stored(given, at, count, fields, now)
  local stored, settled = redis.call('HMGET', records, unpack(given, at + 1, at + count)), nil
  local window = tonumber(fields[DEDUP_MS])
  if window > 0 then
    --- @include "lib/settle/settled"
    settled = find_settled(window, tonumber(fields[SETTLED_TURN]), now, given, at + 1, at + count)
  end
  return stored, settled
end

-- The set of the first ids.
--- @inline
local function ids_until(given, at, last)
  local seen = {}
  for i = 1, last do
    seen[given[at + i]] = true
  end
  return seen
end

-- What the head of a record says. `bodies`: the key of large bodies, `large`: whether messages may have such.
--- @inline
local function read_head(head, large)
  if #head ~= HEAD then
    fail('ARG', 'head')
  end
  local flags = string.byte(head, 1) % 32
  if flags >= COLLECTS and not large then
    --- @include "lib/records/large_bodies"
    if is_large(head) then
      fail('BODY', bodies)
    end
  end
  local priority, timed = priority_of(head), flags % 2 == 1
  if (priority > 0 or not timed) and (priority < PRIORITY_MIN or priority >= PRIORITY_END) then
    fail('ARG', 'priority')
  end
  return { priority = priority, timed = timed, expires = flags % 4 >= EXPIRES }
end

-- The rest of a record that waits for its time, with times instead of delays.
--- @inline
local function timed_rest(rest, due, expires)
  if expires then
    rest = write48(due) .. write48(due + read48(rest, 7)) .. string.sub(rest, 13)
  else
    rest = write48(due) .. string.sub(rest, 7)
  end
  return rest
end

-- What is to be written for messages that are new: (how many they are; scores and ids in turn; ids and records in turn; the
-- counters after them; when the first timed one is due, or nil; whether there are others; the positions of duplicates, or nil;
-- whether one expires; whether one may have an offloaded body). `enter`: a function where the slot has groups, else nil: it
-- chooses the scores of those without a time.
--- @inline
local function make_entries(given, at, count, stored, settled, large, now, accepted, order, enter)
  local n, scores, new_records, earliest, at_once, duplicates, expires = 0, {}, {}, nil, false, nil, false
  local heads, last_id, seen, score_of_time, coded = {}, '', nil, nil, false
  for i = 1, count do
    local id = given[at + i]
    if #id ~= MEMBER then
      fail('ARG', 'id')
    end
    local duplicate = stored[i] or settled and settled[i] == 1
    if seen or id <= last_id then
      -- Ids that a producer makes grow, so none comes twice. Other ids are looked up.
      if not seen then
        seen = ids_until(given, at, i - 1)
      end
      duplicate = duplicate or seen[id]
      seen[id] = true
    end
    last_id = id
    if duplicate then
      duplicates = duplicates or {}
      duplicates[i] = true
    else
      local head, rest, score = given[at + count + 2 * i - 1], given[at + count + 2 * i], nil
      local kind = heads[head]
      if not kind then
        kind = read_head(head, large)
        heads[head] = kind
        coded = coded or string.byte(head, 1) >= CODED and string.byte(head, 1) < CODED_END
      end
      n, accepted, expires = n + 1, accepted + 1, expires or kind.expires
      if kind.timed then
        if not score_of_time then -- only a batch with times in it needs the function
          --- @include "lib/scores/timed_score"
          score_of_time = next_timed_score
        end
        local due = read48(rest, 1)
        if due < TIMED_MIN then
          due = now + due
        end
        if not earliest or due < earliest then
          earliest = due
        end
        score = score_of_time(due, kind.priority > 0 and 1 or 0)
        rest = timed_rest(rest, due, kind.expires)
      else
        at_once = true
        if enter then
          enter(i, id, kind.priority)
        else
          order = order + 1
          score = ordered_text(kind.priority, order)
        end
        if kind.expires then
          rest = write48(now + read48(rest, 1)) .. string.sub(rest, 7)
        end
      end
      if score then
        scores[#scores + 1], scores[#scores + 2] = score, id
      end
      new_records[2 * n - 1], new_records[2 * n] = id, head .. struct.pack('>I4', accepted % ACCEPTED_CYCLE) .. rest
    end
  end
  return n, scores, new_records, accepted, order, earliest, at_once, duplicates, expires, coded
end

-- A letter for each message: s stored, d duplicate.
--- @inline
local function letters_of(count, duplicates)
  local letters = {}
  for i = 1, count do
    letters[i] = duplicates[i] and 'd' or 's'
  end
  return table.concat(letters)
end

-- Store new messages in a slot. The first write is one that Redis refuses at maxmemory. A time that has passed is no error: the
-- message is due at once.
--   given: from at + 1 on, the ids, then head and rest of each message
--   fields: of read_store_fields
--   large: whether messages with large bodies may be among them
-- Returns the reply of send.
local function store_messages(given, at, count, fields, large, now, channel, index)
  local capacity = tonumber(fields[CAPACITY])
  local accepted, order, front = tonumber(fields[ACCEPTED] or 0), tonumber(fields[ORDER] or 0), tonumber(fields[FRONT] or 0)
  local waiting_now, old_front = capacity > 0 and redis.call('ZCARD', store), front
  order = restarted_order(order)
  front = restarted_front(front)
  local stored, settled = find_stored(given, at, count, fields, now)
  local n, scores, new_records, earliest, at_once, duplicates, expires, coded, enter, write_heads
  if fields[GROUPS] then
    --- @include "lib/groups/enter_groups"
    enter, write_heads = entering_groups(fields[GROUPS], nil, given, at + count, count, 2)
  end
  n, scores, new_records, accepted, order, earliest, at_once, duplicates, expires, coded =
    make_entries(given, at, count, stored, settled, large, now, accepted, order, enter)
  local drop_lowest, letters = nil, ''
  if duplicates then
    letters = letters_of(count, duplicates)
  end
  if n == 0 then
    return { accepted, letters }
  end

  if capacity > 0 and waiting_now + n > capacity then
    if fields[OVERFLOW] == 'drop_lowest' and n <= capacity then
      --- @include "lib/send/plan_drop_lowest"
      drop_lowest = plan_drop_lowest(waiting_now + n - capacity, new_records, now)
    end
    if not drop_lowest then
      return { 0, 'F' }
    end
  end

  local sleeping, first_due = fields[WAITING] and tonumber(fields[WAITING]) > now, nil
  if earliest and sleeping then
    first_due = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  -- The sorted set first: a wrong type there shows before anything is written.
  if #scores > 0 then
    add_members(store, scores, #scores / 2)
  end
  if write_heads then
    at_once = write_heads()
  end
  redis.call('HSET', records, unpack(new_records))
  redis.call('HSET', slot, 'accepted', accepted, 'order', order)
  if expires then
    redis.call('HDEL', slot, 'no_expiry')
  end
  if coded then
    --- @include "lib/records/large_bodies"
    note_offloaded(new_records)
  end
  if front ~= old_front then
    redis.call('HSET', slot, 'front', front)
  end
  if drop_lowest then
    drop_lowest()
  end
  if sleeping and (at_once or not first_due or earliest < tonumber(first_due)) then
    --- @include "lib/wake/hand_over"
    serve_sleepers(channel, index, now)
  end
  return { accepted, letters }
end
