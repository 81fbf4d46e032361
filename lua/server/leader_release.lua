--[[
leader_release: end the leadership of a server, so that another server can lead at once.

ARGV[1]   server               its id
Returns   1 released, 0 it did not lead
Cost      O(1)
Atomic    A second run changes nothing, even if another server leads at that time.
]]
--- @keys leader
--- @include "lib/check"
if not ARGV[1] then
  fail('ARG', 'server')
end
if redis.call('GET', leader) == ARGV[1] then
  return redis.call('DEL', leader)
end
return 0
