--[[
Dead letters that are on their way to another topic.

Two slots cannot change in one step. So a dead letter is held first: it stays in the DeadQueue, and
a field of the slot's hash says where it goes. The field is `>` and its member. The value is a token
of 8 bytes and `<time of death> <index of the slot there> <topic>`. A letter that is held cannot
be sent back to this topic or to a third topic. The field `holds` counts the held letters.
lib/records/drop_for_good removes their fields. A hold with another time of death has no effect.
]]
--- @needs slot
local TOKEN = 8 -- bytes of a token

-- Return the field for the hold of a dead letter.
local function hold_field(id)
  return '>' .. id
end

-- Return token, slot index and topic of a dead letter that is held; nothing if it is not. `died`:
-- its score, as Redis returned it.
local function hold_of(id, died)
  local value = redis.call('HGET', slot, hold_field(id))
  if value then
    local since, index, topic = string.match(string.sub(value, TOKEN + 1), '^(%S+) (%d+) (%S+)$')
    if since == died then
      return string.sub(value, 1, TOKEN), index, topic
    end
  end
end

-- Remove the holds of dead letters. Letters that are not held are ignored.
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
