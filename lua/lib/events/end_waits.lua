-- Ending the waits of messages that die or are removed.
--- @needs slot bodies
--- @include "lib/events/waits"

-- Count the messages that wait for an event as messages that no longer wait. Return the names of
-- the fields with the waits of all messages, and the waits by position.
--- @inline
local function end_waits(ids)
  local names, ended
  names = wait_names(ids)
  local found, count = redis.call('HMGET', bodies, unpack(names)), 0
  for i = 1, #ids do
    ended = waiting_count(found[i])
    count = count + ended
  end
  if count > 0 then -- Redis 7.0 refuses to add -0
    redis.call('HINCRBY', slot, 'suspended', -count)
  end
  return names, found
end
