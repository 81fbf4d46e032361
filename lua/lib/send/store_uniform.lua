-- Storing messages that differ in their bodies alone, for send and publish.
--- @needs slot store records
--- @include "lib/add"
--- @include "lib/check"
--- @include "lib/scores/counters"
--- @include "lib/scores/score"
--- @include "lib/records/record_bytes"
--- @include "lib/send/run_members"
--- @include "lib/slot_fields"
local FEW_SCORES = 40 -- scores of fewer messages cost less than the list of digits
local LAST_SIX = 1000000 -- the last six digits are what is left by it
local BLOCK = 100 -- bodies that are handled at a time: as many as fit the processor's cache

-- Scores and ids, in turn, as ZADD takes them, of messages that came one after another: ordered_text of each. The digits
-- that all have in common are written once, and the last six come from a list, two by two.
local function ordered_scores(integer, order, ids, count)
  local scores, two = {}, {}
  if count < FEW_SCORES then
    for i = 1, count do
      scores[2 * i - 1], scores[2 * i] = ordered_text(integer, order + i), ids[i]
    end
    return scores
  end
  for n = 0, 99 do
    two[n] = string.format('%02d', n)
  end
  local common, stem = -1, nil
  local step = ordered_score(integer, order + count) > integer and steps[integer] -- none of them ties
  for i = 1, count do
    local fraction = (step and 0.5 - (order + i) * step or ordered_score(integer, order + i) - integer) * 1e16 + 0.5
    fraction = fraction - fraction % 1
    local last = fraction % LAST_SIX
    if fraction - last ~= common then
      common = fraction - last
      stem = string.format('%d.%010d', integer, common / LAST_SIX)
    end
    local b = last % 10000
    local c = b % 100
    scores[2 * i - 1] = stem .. two[(last - b) / 10000] .. two[(b - c) / 100] .. two[c]
    scores[2 * i] = ids[i]
  end
  return scores
end

-- Store messages of one head without times, whose ids are new: the stamps follow each other (lib/send/run_members). The
-- sender made them for this call, so they are new unless an earlier copy of it has stored them. The first and the last
-- of them show that; where one of them is here, and where the slot has a capacity, nothing is stored, and the caller looks up
-- each of them. Returns the acceptance number of the last one, or nil.
--   fields: of read_store_fields
--   bodies_of: a function (from, to) of positions; returns a table and the place in it before the first body
local function store_uniform(fields, head, members, bodies_of, now, channel, index)
  local count = #members
  if #head ~= HEAD then
    fail('ARG', 'head')
  end
  local priority = priority_of(head)
  if priority < PRIORITY_MIN or priority >= PRIORITY_END or string.byte(head, 1) % COLLECTS > 0 then
    fail('ARG', 'priority')
  end
  local accepted, order, front = tonumber(fields[ACCEPTED] or 0), tonumber(fields[ORDER] or 0), tonumber(fields[FRONT] or 0)
  local stored = redis.call('HMGET', records, members[1], members[count])
  if tonumber(fields[CAPACITY]) > 0 or stored[1] or stored[2] then
    return nil
  end
  local old_front = front
  order = restarted_order(order)
  front = restarted_front(front)

  if fields[GROUPS] then
    --- @include "lib/groups/enter_groups"
    local rests, before = bodies_of(1, count)
    enter_all(fields[GROUPS], head, rests, before, members, priority)
  else
    local scores = ordered_scores(priority, order, members, count)
    add_members(store, scores, count)
    order = order + count
  end
  local bytes, stem = ready_bytes(accepted + 1, count), nil
  local coded = string.byte(head, 1) >= CODED and string.byte(head, 1) < CODED_END
  for at = 0, count - 1, BLOCK do
    local size, new_records = math.min(BLOCK, count - at), {}
    local texts, before = bodies_of(at + 1, at + size)
    for i = 1, size do
      accepted = accepted + 1
      local last = accepted % 256
      if last == 0 or i == 1 then
        stem = head .. string.sub(struct.pack('>I4', accepted % ACCEPTED_CYCLE), 1, 3)
      end
      new_records[2 * i - 1], new_records[2 * i] = members[at + i], stem .. bytes[last] .. texts[before + i]
    end
    redis.call('HSET', records, unpack(new_records))
    if coded then
      --- @include "lib/records/large_bodies"
      coded = not note_offloaded(new_records)
    end
  end
  redis.call('HSET', slot, 'accepted', accepted, 'order', order)
  if front ~= old_front then
    redis.call('HSET', slot, 'front', front)
  end
  if fields[WAITING] and tonumber(fields[WAITING]) > now then
    --- @include "lib/wake/hand_over"
    serve_sleepers(channel, index, now)
  end
  return accepted
end
