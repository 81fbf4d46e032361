--[[
slot: give one slot the settings of its topic, which its scripts read. A slot that has them is left alone.

KEYS[1]   slot           hash  settings and counters of the slot
ARGV[1]   created              the topic's stamp
ARGV[2..] pairs of setting, value
Returns   1 set up, 0 was there, -1 was there with another topic's stamp
Cost      O(settings)
Atomic    Run twice, the second run changes nothing.
]]
local stamp = redis.call('HGET', KEYS[1], 'created')
if stamp then
  return stamp == ARGV[1] and 0 or -1
end
redis.call('HSET', KEYS[1], 'created', ARGV[1], unpack(ARGV, 2))
return 1
