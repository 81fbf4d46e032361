--[[
Dead letters that are on their way to another topic.

Two slots cannot change in one step. So a dead letter is held first: it stays in the DeadQueue, and
a field of the slot's hash, `>` and its member, says where it goes: 8 bytes of a token, then `<time
of death> <index of the slot there> <topic>`. A letter that is held is not sent back here, and goes
to no other topic. The field `holds` counts them, and what deletes dead letters for good removes
theirs (lib/records/drop_for_good). A hold that names another time of death holds nothing.
]]
--- @needs slot

-- The field of a dead letter that is held.
local function hold_field(id)
  return '>' .. id
end

-- The (token, slot index, topic) of a dead letter that is held; nothing where it is not. `died`:
-- its score, as Redis returned it.
local function hold_of(id, died)
  local value = redis.call('HGET', slot, hold_field(id))
  if value then
    local since, index, topic = string.match(string.sub(value, 9), '^(%S+) (%d+) (%S+)$')
    if since == died then
      return string.sub(value, 1, 8), index, topic
    end
  end
end

-- Remove the holds of these dead letters, held or not.
local function drop_holds(ids)
  local fields = {}
  for i = 1, #ids do
    fields[i] = hold_field(ids[i])
  end
  local removed = #fields > 0 and redis.call('HDEL', slot, unpack(fields)) or 0
  if removed > 0 and redis.call('HINCRBY', slot, 'holds', -removed) <= 0 then
    redis.call('HDEL', slot, 'holds')
  end
end
