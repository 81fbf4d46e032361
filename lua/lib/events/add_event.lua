-- Adding events to the steps of a message.
--- @needs slot bodies
--- @include "lib/records/steps"

-- Store an event as the last item of a message's steps, in place of an earlier event with its key.
-- Return the size of the steps in bytes.
--   state: e the event came, t the time limit ended
local function add_event(id, state, key, at, data)
  local entry = redis.call('HGET', bodies, id .. 's')
  local item
  item = item_of(state, key, at, data)
  if not entry then
    redis.call('HINCRBY', slot, 'steps', 1)
    redis.call('HINCRBY', slot, 'large', 1)
    entry = ''
  end
  local from, to = find_item(entry, key, EVENTS)
  local changed = string.sub(entry, 1, from - 1) .. string.sub(entry, to) .. item
  redis.call('HSET', bodies, id .. 's', changed)
  return #changed
end
