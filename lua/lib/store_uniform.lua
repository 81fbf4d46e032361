-- Storing messages that differ in their bodies alone, for publish.
--- @include "lib/check"
--- @include "lib/member"
--- @include "lib/score"
--- @include "lib/record"
local BLOCK = 100 -- bodies that are handled at a time: as many as fit the processor's cache

-- Scores and ids, in turn, as ZADD takes them, of messages that came one after another: ordered_text of each. The digits
-- that all have in common are written once, and the last six come from a list, two by two.
local function ordered_scores(integer, order, ids, count)
  local scores, two = {}, {}
  for n = 0, 99 do
    two[n] = string.format('%02d', n)
  end
  local common, stem = -1, nil
  local step = ordered_score(integer, order + count) > integer and steps[integer] -- none of them ties
  for i = 1, count do
    local fraction = (step and 0.5 - (order + i) * step or ordered_score(integer, order + i) - integer) * 1e16 + 0.5
    fraction = fraction - fraction % 1
    local last = fraction % 1000000
    if fraction - last ~= common then
      common = fraction - last
      stem = string.format('%d.%010d', integer, common / 1000000)
    end
    local b = last % 10000
    local c = b % 100
    scores[2 * i - 1] = stem .. two[(last - b) / 10000] .. two[(b - c) / 100] .. two[c]
    scores[2 * i] = ids[i]
  end
  return scores
end

-- Store the messages of a stage entry: one head without times, and ids whose stamps follow each other. The writer of the
-- stage made the ids for this entry, so they are new unless the entry was published before. The first and the last
-- of them show that; where one of them is here, and where the slot has a capacity, the entry goes through store_messages.
-- Returns the letters of store_messages; '' means that all are stored.
--   keys: slot, StoreQueue, records, settled even, settled odd, failures, merge index, audit, stage
--   entry: 'p', head, the first id, how many
local function store_uniform(keys, entry, now, channel, index, created)
  local slot, store, records, stage = keys[1], keys[2], keys[3], keys[9]
  local head, first, count = entry[2], entry[3], entry[4]
  if type(head) ~= 'string' or #head ~= 4 or type(first) ~= 'string' or #first ~= MEMBER or type(count) ~= 'number'
      or count < 1 or count > 1000 or count % 1 > 0 then
    fail('STAGE', stage)
  end
  local priority = priority_of(head)
  if priority < PRIORITY_MIN or priority >= PRIORITY_END or string.byte(head, 1) % 16 > 0 then
    fail('ARG', 'head')
  end
  -- Ids are joined from ready-made bytes: packing each one costs twice as much.
  local bytes = {}
  for i = 0, 255 do
    bytes[i] = string.char(i)
  end
  local ids, high, low = {}, struct.unpack('>I4I4', first)
  local tail, stem = string.sub(first, 9), nil
  for i = 1, count do
    local last = low % 256
    if last == 0 or i == 1 then
      stem = string.sub(struct.pack('>I4I4', high + math.floor(low / 4294967296), low % 4294967296), 1, 7)
    end
    ids[i] = stem .. bytes[last] .. tail
    low = low + 1
  end

  local s = redis.call('HMGET', slot, 'accepted', 'order', 'waiting', 'capacity', 'front')
  local accepted, order, front = tonumber(s[1] or 0), tonumber(s[2] or 0), tonumber(s[5] or 0)
  local stored = redis.call('HMGET', records, ids[1], ids[count])
  if tonumber(s[4]) > 0 or stored[1] or stored[2] then
    local function store_messages(given, at)
      --- @include "lib/inline/store_messages"
    end
    local bodies = redis.call('LRANGE', stage, 1, count)
    for i = 1, count do
      ids[count + 2 * i - 1], ids[count + 2 * i] = head, bodies[i]
    end
    return store_messages(ids, 0)[2]
  end
  local old_front = front
  --- @include "lib/inline/restart_counters"

  local scores = ordered_scores(priority, order, ids, count)
  if count < 8 then
    redis.call('ZADD', store, unpack(scores))
  else
    --- @include "lib/writes"
    add_many(store, scores)
  end
  for at = 0, count - 1, BLOCK do
    local size = math.min(BLOCK, count - at)
    local bodies, new_records = redis.call('LRANGE', stage, at + 1, at + size), {}
    for i = 1, size do
      accepted = accepted + 1
      local last = accepted % 256
      if last == 0 or i == 1 then
        stem = head .. string.sub(struct.pack('>I4', accepted % 4294967296), 1, 3)
      end
      new_records[2 * i - 1], new_records[2 * i] = ids[at + i], stem .. bytes[last] .. bodies[i]
    end
    redis.call('HSET', records, unpack(new_records))
  end
  redis.call('HSET', slot, 'accepted', accepted, 'order', order + count)
  if front ~= old_front then
    redis.call('HSET', slot, 'front', front)
  end
  if s[3] and tonumber(s[3]) > now then
    --- @include "lib/wake"
    wake(slot, channel, index)
  end
  return ''
end
