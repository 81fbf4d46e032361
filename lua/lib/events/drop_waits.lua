-- Deleting the waits of messages that are removed.
--- @needs slot bodies
--- @include "lib/events/waits"

-- Delete the waits of messages.
local function drop_waits(ids)
  local names, waiting = nil, 0
  names = wait_names(ids)
  local found = redis.call('HMGET', bodies, unpack(names))
  for i = 1, #ids do
    local key
    key = awaited_key(found[i])
    waiting = waiting + (key and 1 or 0)
  end
  local removed = redis.call('HDEL', bodies, unpack(names))
  for _, field in ipairs({ 'waited', 'large' }) do
    if removed > 0 and redis.call('HINCRBY', slot, field, -removed) <= 0 then
      redis.call('HDEL', slot, field)
    end
  end
  if waiting > 0 then
    redis.call('HINCRBY', slot, 'suspended', -waiting)
  end
end
