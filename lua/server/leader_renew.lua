--[[
leader_renew: make a server the leader if no server leads, or extend its leadership.

ARGV[1]   server               its id
ARGV[2]   hold_ms              100 to 86 400 000: how long it leads from now on
Returns   {1 this server leads | 0 another server leads, the server that leads, ms until its time
          ends}
Cost      O(1)
Atomic    Works while Redis is at maxmemory: the first write needs no memory. A second run extends
          the leadership again.
]]
--- @keys leader
--- @include "lib/check"
local hold = whole_number(ARGV[2], 100, HOLD_MOST_MS, 'hold_ms')
local leads = redis.call('GET', leader)
if leads and leads ~= ARGV[1] then
  return { 0, leads, redis.call('PTTL', leader) }
end
if leads then
  redis.call('PEXPIRE', leader, hold)
else
  redis.call('DEL', leader) -- needs no memory: after it, Redis does not check memory
  redis.call('SET', leader, ARGV[1], 'PX', hold)
end
return { 1, ARGV[1], hold }
