--[[
store_messages: store new messages in a slot, for send and publish. send.lua describes the answer. The first write is one
that Redis refuses at maxmemory. A time that has passed is no error: the message is due at once.

Reads:     keys: slot, StoreQueue, records, settled even, settled odd, failures, merge index, audit, large bodies, PrepareQueue
           given: from at + 1 on, the ids, then head and rest of each message
           at, count, now, channel, index
           large: whether messages with large bodies may be among them
           s: the fields of the slot, from store_fields
Writes:    nothing
Declares:  slot, store, records, accepted, order, front, capacity, window, waiting_now, old_front, RESTART, stored, settled,
           sleeping, score_of_time, scores, new_records, kinds, letters, n, any_duplicate, earliest, at_once,
           last_id, seen, drop_lowest, first_due
Returns for the caller: yes: the answer, always
]]
--- @include "lib/check"
--- @include "lib/member"
--- @include "lib/score"
--- @include "lib/record"
local slot, store, records = keys[1], keys[2], keys[3]
local accepted, order, front = tonumber(s[2] or 0), tonumber(s[3] or 0), tonumber(s[9] or 0)
local capacity, window = tonumber(s[5]), tonumber(s[7])
local waiting_now, old_front = capacity > 0 and redis.call('ZCARD', store), front
--- @include "lib/inline/restart_counters"
local stored = redis.call('HMGET', records, unpack(given, at + 1, at + count))
local settled
if window > 0 then
  --- @include "lib/settled"
  settled = find_settled(keys[4], keys[5], window, tonumber(s[8]), now, given, at + 1, at + count)
end
local sleeping = s[4] and tonumber(s[4]) > now
local score_of_time -- only a batch with times in it needs the function

local scores, new_records, kinds, letters = {}, {}, {}, {}
local n, any_duplicate, earliest, at_once = 0, false, nil, false
local last_id, seen = '', nil
for i = 1, count do
  local id = given[at + i]
  if #id ~= MEMBER then
    fail('ARG', 'id')
  end
  local duplicate = stored[i] or (settled and settled[i] == 1)
  if seen or id <= last_id then
    -- Ids that a producer makes grow, so none comes twice. Other ids are looked up.
    if not seen then
      seen = {}
      for j = 1, i - 1 do
        seen[given[at + j]] = true
      end
    end
    duplicate = duplicate or seen[id]
    seen[id] = true
  end
  last_id = id
  if duplicate then
    if not any_duplicate then
      any_duplicate = true
      for j = 1, i - 1 do
        letters[j] = 's'
      end
    end
    letters[i] = 'd'
  else
    if any_duplicate then
      letters[i] = 's'
    end
    local head, rest = given[at + count + 2 * i - 1], given[at + count + 2 * i]
    local kind = kinds[head]
    if not kind then
      if #head ~= 4 then
        fail('ARG', 'head')
      end
      local flags = string.byte(head, 1) % 32
      if flags >= 8 and not large then
        --- @include "lib/large_bodies"
        if is_large(head) then
          fail('BODY', keys[9])
        end
      end
      kind = { priority_of(head), flags % 2 == 1, flags % 4 >= 2 } -- priority, timed, expires
      if (kind[1] > 0 or not kind[2]) and (kind[1] < PRIORITY_MIN or kind[1] >= PRIORITY_END) then
        fail('ARG', 'priority')
      end
      if kind[2] and not score_of_time then
        --- @include "lib/timed_score"
        score_of_time = next_timed_score
      end
      kinds[head] = kind
    end
    n = n + 1
    accepted = accepted + 1
    local score
    if kind[2] then
      local due = read48(rest, 1)
      if due < TIMED_MIN then
        due = now + due
      end
      if not earliest or due < earliest then
        earliest = due
      end
      score = score_of_time(store, due, kind[1] > 0 and 1 or 0)
      if kind[3] then
        rest = write48(due) .. write48(due + read48(rest, 7)) .. string.sub(rest, 13)
      else
        rest = write48(due) .. string.sub(rest, 7)
      end
    else
      at_once = true
      order = order + 1
      score = ordered_text(kind[1], order)
      if kind[3] then
        rest = write48(now + read48(rest, 1)) .. string.sub(rest, 7)
      end
    end
    scores[2 * n - 1], scores[2 * n] = score, id
    new_records[2 * n - 1], new_records[2 * n] = id, head .. struct.pack('>I4', accepted % 4294967296) .. rest
  end
end
if n == 0 then
  return { accepted, table.concat(letters) }
end

local drop_lowest
if capacity > 0 and waiting_now + n > capacity then
  if s[6] == 'drop_lowest' and n <= capacity then
    --- @include "lib/drop_lowest"
    drop_lowest = plan_drop_lowest(slot, store, records, keys[9], keys[6], keys[7], keys[8], waiting_now + n - capacity,
      new_records, now)
  end
  if not drop_lowest then
    return { 0, 'F' }
  end
end

local first_due
if earliest and sleeping then
  first_due = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end
-- The sorted set first: a wrong type there shows before anything is written.
if n < 8 then
  redis.call('ZADD', store, unpack(scores))
else
  --- @include "lib/writes"
  add_many(store, scores)
end
redis.call('HSET', records, unpack(new_records))
redis.call('HSET', slot, 'accepted', accepted, 'order', order)
if front ~= old_front then
  redis.call('HSET', slot, 'front', front)
end
if drop_lowest then
  drop_lowest()
end
if sleeping and (at_once or not first_due or earliest < tonumber(first_due)) then
  --- @include "lib/hand_over"
  serve_sleepers(slot, store, keys[10], records, keys[6], channel, index, now)
end
return { accepted, any_duplicate and table.concat(letters) or '' }
