-- Finding deliveries that have waited for an event.
--- @needs bodies
--- @include "lib/events/waits"

-- Return whether one of these messages has waited for an event.
local function any_waited(ids)
  local names
  names = wait_names(ids)
  local found = redis.call('HMGET', bodies, unpack(names))
  for i = 1, #ids do
    if found[i] then
      return true
    end
  end
  return false
end
