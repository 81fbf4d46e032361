-- Ending the waits of messages that die or are removed.
--- @needs bodies
--- @include "lib/events/waits"

-- Note that messages no longer wait for an event. Call it after a write that frees memory.
--- @inline
local function end_waits(ids)
  local names
  names = wait_names(ids)
  local waits_of = redis.call('HMGET', bodies, unpack(names))
  for i = 1, #ids do
    local key
    key = awaited_key(waits_of[i])
    if key then
      end_wait(ids[i], waits_of[i])
    end
  end
end
