--[[
leader_renew: take the leadership of the servers if nobody has it, or hold it for longer.

ARGV[1]   server               its id
ARGV[2]   hold_ms              100 to 86 400 000, counted from now
Returns   {1 this server leads | 0 another does, the server that leads, ms until its time ends}
Cost      O(1)
Atomic    Works while Redis is at maxmemory: the first write needs no memory. A second run holds it for longer again.
]]
--- @keys leader
--- @include "lib/check"
local hold = whole_number(ARGV[2], 100, HOLD_MOST_MS, 'hold_ms')
local leads = redis.call('GET', leader)
if leads == ARGV[1] then
  redis.call('PEXPIRE', leader, hold)
elseif leads then
  return { 0, leads, redis.call('PTTL', leader) }
else
  redis.call('DEL', leader) -- a write that needs no memory: after it, Redis checks no more
  redis.call('SET', leader, ARGV[1], 'PX', hold)
end
return { 1, ARGV[1], hold }
