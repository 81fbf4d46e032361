--[[
topic_close: mark a topic as being deleted, so that it cannot be opened; or remove the mark.

ARGV[1]   created              the topic's stamp
ARGV[2]   closed               1: it is being deleted; 0: remove the mark
Returns   1 done, 0 the topic is missing or has another stamp
Cost      O(1)
Atomic    Works while Redis is at maxmemory. A second run changes nothing.
]]
--- @keys topic
--- @include "lib/check"
local closed = whole_number(ARGV[2], 0, 1, 'closed')
whole_number(ARGV[1], 0, NUMBER_MOST, 'created')
if redis.call('HGET', topic, 'created') ~= ARGV[1] then
  return 0
end
redis.call('HDEL', topic, 'deleting') -- needs no memory: after it, Redis does not check memory
if closed == 1 then
  redis.call('HSET', topic, 'deleting', 1)
end
return 1
