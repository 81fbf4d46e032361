-- accept: takes messages into a slot, for send and publish. `given` holds from at + 1 on: n ids, then n times
-- head and rest. What it answers is told in send.lua; its first write is one that Redis refuses at maxmemory.
-- A time that has passed is no error: the message is due at once.
-- `created`: the topic's stamp, as the caller opened it.
--   keys: slot, StoreQueue, records, settled even, settled odd, failures, merge index, audit
--- @include "lib/score"
--- @include "lib/head"
local function accept(keys, given, at, count, now, channel, index, created)
  local slot, store, records = keys[1], keys[2], keys[3]
  local s = redis.call('HMGET', slot, 'created', 'accepted', 'order', 'waiting', 'capacity', 'overflow', 'dedup_ms',
    'settled_turn', 'front')
  if s[1] ~= created then
    fail(s[1] and 'ANEW' or 'GONE', slot)
  end
  local accepted, order = tonumber(s[2] or 0), tonumber(s[3] or 0)
  local capacity, window = tonumber(s[5]), tonumber(s[7])
  local waiting_now, front = capacity > 0 and redis.call('ZCARD', store), tonumber(s[9] or 0)
  local new_front = front
  if order > 1073741824 or front < -1073741824 then
    --- @include "lib/anew"
    order, new_front = order_anew(store, order), front_anew(store, front)
  end
  local here = redis.call('HMGET', records, unpack(given, at + 1, at + count))
  local known
  if window > 0 then
    --- @include "lib/known"
    known = settled_known(keys[4], keys[5], window, tonumber(s[8]), now, given, at + 1, at + count)
  end
  local sleeping = s[4] and tonumber(s[4]) > now
  local read_time, write_time, score_of_time -- only a batch with times in it needs them

  local scored = capacity > 0 and ordered_score or ordered_text -- scores are compared where room is made
  local scores, pairs_, kinds, letters = {}, {}, {}, {}
  local n, repeated, earliest, at_once = 0, false, nil, false
  local last_id, seen = '', nil
  for i = 1, count do
    local id = given[at + i]
    if #id ~= 16 then
      fail('ARG', 'id')
    end
    local again = here[i] or (known and known[i] == 1)
    if seen or id <= last_id then
      -- Ids that a producer makes grow, so that none comes twice. Others are looked up.
      if not seen then
        seen = {}
        for j = 1, i - 1 do
          seen[given[at + j]] = true
        end
      end
      again = again or seen[id]
      seen[id] = true
    end
    last_id = id
    if again then
      if not repeated then
        repeated = true
        for j = 1, i - 1 do
          letters[j] = 's'
        end
      end
      letters[i] = 'd'
    else
      if repeated then
        letters[i] = 's'
      end
      local head, rest = given[at + count + 2 * i - 1], given[at + count + 2 * i]
      local kind = kinds[head]
      if not kind then
        if #head ~= 4 then
          fail('ARG', 'head')
        end
        local flags = string.byte(head, 1) % 32
        kind = { priority_of(head), flags % 2 == 1, flags % 4 >= 2 }
        if (kind[1] > 0 or not kind[2]) and (kind[1] < PRIORITY_MIN or kind[1] >= PRIORITY_END) then
          fail('ARG', 'priority')
        end
        if (kind[2] or kind[3]) and not read_time then
          --- @include "lib/record"
          --- @include "lib/timed"
          read_time, write_time, score_of_time = read48, write48, in_line
        end
        kinds[head] = kind
      end
      n = n + 1
      accepted = accepted + 1
      local score
      if kind[2] then
        local due = read_time(rest, 1)
        if due < TIMED_MIN then
          due = now + due
        end
        if not earliest or due < earliest then
          earliest = due
        end
        score = score_of_time(store, due, kind[1] > 0 and 1 or 0)
        if kind[3] then
          rest = write_time(due) .. write_time(due + read_time(rest, 7)) .. string.sub(rest, 13)
        else
          rest = write_time(due) .. string.sub(rest, 7)
        end
      else
        at_once = true
        order = order + 1
        score = scored(kind[1], order)
        if kind[3] then
          rest = write_time(now + read_time(rest, 1)) .. string.sub(rest, 7)
        end
      end
      scores[2 * n - 1], scores[2 * n] = score, id
      pairs_[2 * n - 1], pairs_[2 * n] = id, head .. struct.pack('>I4', accepted % 4294967296) .. rest
    end
  end
  if n == 0 then
    return { accepted, table.concat(letters) }
  end

  local make_room
  if capacity > 0 and waiting_now + n > capacity then
    local least = scores[1]
    for i = 3, 2 * n, 2 do
      least = math.min(least, scores[i])
    end
    if s[6] == 'drop_lowest' and n <= capacity then
      --- @include "lib/room"
      make_room = room_for(slot, store, records, keys[6], keys[7], keys[8], waiting_now + n - capacity, least, now)
    end
    if not make_room then
      return { 0, 'F' }
    end
  end

  local head_due
  if earliest and sleeping then
    head_due = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  -- The sorted set first: a wrong type there shows before anything is written.
  if n < 8 then
    redis.call('ZADD', store, unpack(scores))
  else
    --- @include "lib/add_wide"
    add_wide(store, scores)
  end
  redis.call('HSET', records, unpack(pairs_))
  redis.call('HSET', slot, 'accepted', accepted, 'order', order)
  if new_front ~= front then
    redis.call('HSET', slot, 'front', new_front)
  end
  if make_room then
    make_room()
  end
  if sleeping and (at_once or not head_due or earliest < tonumber(head_due)) then
    --- @include "lib/wake"
    wake(slot, channel, index)
  end
  return { accepted, repeated and table.concat(letters) or '' }
end
