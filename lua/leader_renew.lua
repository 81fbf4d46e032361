--[[
leader_renew: take the leadership of the servers if nobody has it, or hold it for longer.

KEYS[1]   leader         str   the server that leads; expires
ARGV[1]   server               its id
ARGV[2]   hold_ms              100 to 86 400 000, counted from now
Returns   {1 this server leads | 0 another does, the server that leads, ms until its time ends}
Cost      O(1)
Atomic    Works while Redis is at maxmemory: the first write needs no memory. A second run holds it for longer again.
]]
--- @include "lib/check"
local hold = whole_number(ARGV[2], 100, HOLD_MOST_MS, 'hold_ms')
local leader = redis.call('GET', KEYS[1])
if leader == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], hold)
elseif leader then
  return { 0, leader, redis.call('PTTL', KEYS[1]) }
else
  redis.call('DEL', KEYS[1]) -- a write that needs no memory: after it, Redis checks no more
  redis.call('SET', KEYS[1], ARGV[1], 'PX', hold)
end
return { 1, ARGV[1], hold }
