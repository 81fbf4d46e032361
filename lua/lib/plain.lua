-- plain: takes a run of messages into a slot that differ in their bodies alone, for publish. They are of one head, without
-- times, and the stamps of their ids follow each other: who staged them has made them for this, so that they are new
-- unless the entry has been here before. That shows in the first and the last of them; where it does, and where the slot
-- has a capacity, they go the way of all messages, lib/accept. The answer is the letters of lib/accept: '' all stored.
--   keys: slot, StoreQueue, records, settled even, settled odd, failures, merge index, audit, stage
--   entry: 'p', head, the first id, how many
--- @include "lib/score"
--- @include "lib/head"
local BLOCK = 100 -- bodies on their way at a time: what fits the processor's cache

-- ordered_run: what ZADD takes for so many ids that came one after another: ordered_text and id, in turn. The
-- digits that all have in common are written once, and the last six are taken from a list, two by two.
local function ordered_run(integer, order, ids, count)
  local scores, two = {}, {}
  for n = 0, 99 do
    two[n] = string.format('%02d', n)
  end
  local common, front = -1, nil
  local step = ordered_score(integer, order + count) > integer and steps[integer] -- none of them ties
  for i = 1, count do
    local fraction = (step and 0.5 - (order + i) * step or ordered_score(integer, order + i) - integer) * 1e16 + 0.5
    fraction = fraction - fraction % 1
    local last = fraction % 1000000
    if fraction - last ~= common then
      common = fraction - last
      front = string.format('%d.%010d', integer, common / 1000000)
    end
    local b = last % 10000
    local c = b % 100
    scores[2 * i - 1] = front .. two[(last - b) / 10000] .. two[(b - c) / 100] .. two[c]
    scores[2 * i] = ids[i]
  end
  return scores
end

local function plain(keys, entry, now, channel, index, created)
  local slot, store, records, stage = keys[1], keys[2], keys[3], keys[9]
  local head, first, count = entry[2], entry[3], entry[4]
  if type(head) ~= 'string' or #head ~= 4 or type(first) ~= 'string' or #first ~= 16 or type(count) ~= 'number'
      or count < 1 or count > 1000 or count % 1 > 0 then
    fail('STAGE', stage)
  end
  local priority = priority_of(head)
  if priority < PRIORITY_MIN or priority >= PRIORITY_END or string.byte(head, 1) % 16 > 0 then
    fail('ARG', 'head')
  end
  -- Strings are joined from ready-made pieces: packing and formatting each one costs twice as much.
  local bytes = {}
  for i = 0, 255 do
    bytes[i] = string.char(i)
  end
  local ids, high, low = {}, struct.unpack('>I4I4', first)
  local tail, front = string.sub(first, 9), nil
  for i = 1, count do
    local last = low % 256
    if last == 0 or i == 1 then
      front = string.sub(struct.pack('>I4I4', high + math.floor(low / 4294967296), low % 4294967296), 1, 7)
    end
    ids[i] = front .. bytes[last] .. tail
    low = low + 1
  end

  local s = redis.call('HMGET', slot, 'accepted', 'order', 'waiting', 'capacity', 'front')
  local accepted, order = tonumber(s[1] or 0), tonumber(s[2] or 0)
  local known = redis.call('HMGET', records, ids[1], ids[count])
  if tonumber(s[4]) > 0 or known[1] or known[2] then
    --- @include "lib/accept"
    local bodies = redis.call('LRANGE', stage, 1, count)
    for i = 1, count do
      ids[count + 2 * i - 1], ids[count + 2 * i] = head, bodies[i]
    end
    return accept(keys, ids, 0, count, now, channel, index, created)[2]
  end
  local first_front = tonumber(s[5] or 0)
  local new_front = first_front
  if order > 1073741824 or first_front < -1073741824 then
    --- @include "lib/anew"
    order, new_front = order_anew(store, order), front_anew(store, first_front)
  end

  local scores = ordered_run(priority, order, ids, count)
  if count < 8 then
    redis.call('ZADD', store, unpack(scores))
  else
    --- @include "lib/add_wide"
    add_wide(store, scores)
  end
  for at = 0, count - 1, BLOCK do
    local here = math.min(BLOCK, count - at)
    local bodies, pairs_ = redis.call('LRANGE', stage, at + 1, at + here), {}
    for i = 1, here do
      accepted = accepted + 1
      local last = accepted % 256
      if last == 0 or i == 1 then
        front = head .. string.sub(struct.pack('>I4', accepted % 4294967296), 1, 3)
      end
      pairs_[2 * i - 1], pairs_[2 * i] = ids[at + i], front .. bytes[last] .. bodies[i]
    end
    redis.call('HSET', records, unpack(pairs_))
  end
  redis.call('HSET', slot, 'accepted', accepted, 'order', order + count)
  if new_front ~= first_front then
    redis.call('HSET', slot, 'front', new_front)
  end
  if s[3] and tonumber(s[3]) > now then
    --- @include "lib/wake"
    wake(slot, channel, index)
  end
  return ''
end
