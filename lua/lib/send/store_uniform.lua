-- Store messages that differ only in their bodies: for send and publish.
--- @needs slot store records
--- @include "lib/add"
--- @include "lib/check"
--- @include "lib/scores/counters"
--- @include "lib/scores/score"
--- @include "lib/records/record_bytes"
--- @include "lib/replay"
--- @include "lib/send/group_entrances"
--- @include "lib/send/run_members"
--- @include "lib/slot_fields"
local FEW_SCORES = 40 -- a list of digits costs more than it saves for fewer scores
local BLOCK = 100 -- bodies that are written at once; they fit into the processor's cache

-- Return scores and ids in turn, as ZADD takes them, of messages that arrive one after another. The
-- scores are those of ordered_text. The digits that all scores begin with are formatted once. The
-- last six digits are taken from a list, two at a time.
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
  local scale, format = DECIMALS_16, '%d.%010d'
  if integer >= FEWER_DECIMALS then
    scale, format = DECIMALS_14, '%d.%08d'
  end
  -- false if the last scores are equal, so that each score has to be computed
  local step = ordered_score(integer, order + count) > integer and steps[integer]
  for i = 1, count do
    local fraction = step and 0.5 - (order + i) * step
      or ordered_score(integer, order + i) - integer
    fraction = fraction * scale + 0.5
    fraction = fraction - fraction % 1
    local last = fraction % LAST_SIX
    if fraction - last ~= common then
      common = fraction - last
      stem = string.format(format, integer, common / LAST_SIX)
    end
    local last_four = last % 10000
    local last_two = last_four % 100
    scores[2 * i - 1] = stem .. two[(last - last_four) / 10000]
      .. two[(last_four - last_two) / 100] .. two[last_two]
    scores[2 * i] = ids[i]
  end
  return scores
end

-- Write the records of a batch. `accepted`: the slot's counter before the batch. `may_have_marks`:
-- whether a record may be the first of the slot with the mark to keep its result.
--- @inline
local function write_records(batch, accepted, may_have_marks)
  local head, members, count = batch.head, batch.members, #batch.members
  local bytes, stem = ready_bytes(accepted + 1, count), nil
  local may_be_offloaded = string.byte(head, 1) >= CODED and string.byte(head, 1) < CODED_END
  for at = 0, count - 1, BLOCK do
    local size, new_records = math.min(BLOCK, count - at), {}
    local rests, before = batch.rests_of(at + 1, at + size)
    for i = 1, size do
      accepted = accepted + 1
      local last = accepted % 256
      if last == 0 or i == 1 then
        stem = head .. string.sub(struct.pack('>I4', accepted % ACCEPTED_CYCLE), 1, 3)
      end
      new_records[2 * i - 1], new_records[2 * i] =
        members[at + i], stem .. bytes[last] .. rests[before + i]
    end
    redis.call('HSET', records, unpack(new_records))
    if may_be_offloaded then
      --- @include "lib/records/note_offloaded"
      may_be_offloaded = not note_offloaded(new_records)
    end
    if may_have_marks then
      --- @include "lib/results/note_marks"
      may_have_marks = not note_marks(new_records)
    end
  end
end

-- Store messages of one head, without times, whose stamps follow each other (lib/send/run_members).
-- Return the acceptance number of the last message, and whether the caller must serve sleeping
-- consumers. Return nil if nothing was stored: the slot has a capacity, or the first or the last
-- message is in the slot. Then the caller looks up each message. The sender made the ids for this
-- call, so only an earlier copy of the call can have stored them.
--
-- - batch: head, members, and rests_of, a function that gets the first and the last position. It
--   returns a list with the rest of each record (from byte 9 on), and the place in the list before
--   the first rest. `session` and `call_number`: the session that keeps the answer; nil if the
--   caller keeps it
-- - fields: from read_store_fields
local function store_uniform(batch, fields, now)
  local head, members, count = batch.head, batch.members, #batch.members
  if #head ~= HEAD then
    fail('ARG', 'head')
  end
  local first_byte, priority = split_head(head)
  if priority < PRIORITY_MIN or priority >= PRIORITY_END or first_byte % COLLECTS > 0 then
    fail('ARG', 'priority')
  end
  local stored = redis.call('HMGET', records, members[1], members[count])
  if tonumber(fields[CAPACITY]) > 0 or stored[1] or stored[2] then
    return nil
  end
  local accepted, order = tonumber(fields[ACCEPTED] or 0), tonumber(fields[ORDER] or 0)
  local front = tonumber(fields[FRONT] or 0)
  local new_front = restarted_front(front)
  order = restarted_order(order)

  if fields[GROUPS] then
    --- @include "lib/groups/enter_plain_groups"
    local rests, before = batch.rests_of(1, count)
    local others = enter_plain_groups(fields[GROUPS], head, rests, before, members, priority)
    if not others then
      local enter_members = group_entrances()
      enter_members(fields[GROUPS], head, rests, before, members, priority)
    elseif #others > 0 then
      local enter_members = group_entrances()
      local other_rests, other_members = {}, {}
      for n = 1, #others do
        other_rests[n], other_members[n] = rests[before + others[n]], members[others[n]]
      end
      enter_members(fields[GROUPS], head, other_rests, 0, other_members, priority)
    end
  else
    local scores = ordered_scores(priority, order, members, count)
    add_members(store, scores, count)
    order = order + count
  end
  local may_have_marks = first_byte % CODEC_STEP >= HEADERS and not fields[OUTCOMES]
  write_records(batch, accepted, may_have_marks)
  accepted = accepted + count
  if batch.session then
    local answer = session_value(batch.call_number, now, accepted .. ':')
    redis.call('HSET', slot, 'accepted', accepted, 'order', order, batch.session, answer)
  else
    redis.call('HSET', slot, 'accepted', accepted, 'order', order)
  end
  if new_front ~= front then
    redis.call('HSET', slot, 'front', new_front)
  end
  return accepted, fields[WAITING] and tonumber(fields[WAITING]) > now
end
