-- Finding deliveries that have waited for an event.
--- @needs bodies
--- @include "lib/events/waits"

-- Return whether one of these messages has waited for an event.
--- @inline
local function any_waited(ids)
  local names = wait_names(ids)
  local found, any = redis.call('HMGET', bodies, unpack(names)), false
  for i = 1, #ids do
    any = any or found[i]
  end
  return any
end
