--[[
leader_release: end the leadership of a server, so that another one need not wait for its end.

KEYS[1]   leader         str   the server that leads; expires
ARGV[1]   server               its id
Returns   1 released, 0 it did not lead
Cost      O(1)
Atomic    A second run changes nothing, even if another server leads by then.
]]
--- @include "lib/check"
if not ARGV[1] then
  fail('ARG', 'server')
end
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
