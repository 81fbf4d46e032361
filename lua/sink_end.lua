--[[
sink_end: note that a batch of a query is published.

KEYS[1]   sink           hash  done: the last batch that is published; batch, stages: the batch being published
ARGV[1]   batch                its number
Returns   1 noted, 0 it is not being published
Cost      O(1)
Atomic    Yes; begins with a write that needs no memory. A second run returns 0.
]]
--- @include "lib/check"
local sink = KEYS[1]
whole_number(ARGV[1], 0, NUMBER_MOST, 'batch')
if redis.call('HGET', sink, 'batch') ~= ARGV[1] then
  return 0
end
redis.call('HDEL', sink, 'batch', 'stages')
redis.call('HSET', sink, 'done', ARGV[1])
return 1
