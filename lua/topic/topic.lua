--[[
topic: create a topic, or open the existing topic. Its settings are decided here, once.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   create               1: create the topic if it is missing; 0: only read it
ARGV[3..] pairs of setting, value
Returns   {1 created | 0 existed, setting, value, ...}, or {-1} if the topic is missing and create
          is 0
Cost      O(settings)
Atomic    The settings of the first caller are stored. Later callers compare theirs with them. A
          second run opens the topic.
]]
--- @keys topic
--- @include "lib/clock"
local _, now_us = clock(ARGV[1])
local created = 0
if redis.call('HEXISTS', topic, 'created') == 0 then
  if ARGV[2] ~= '1' then
    return { -1 }
  end
  redis.call('HSET', topic, 'created', string.format('%.0f', now_us), unpack(ARGV, 3))
  created = 1
end
local reply = redis.call('HGETALL', topic)
table.insert(reply, 1, created)
return reply
