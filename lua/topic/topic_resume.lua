--[[
topic_resume: end a pause of a topic. The caller then calls `slot` for each slot, which applies the
newest revision and wakes consumers.

ARGV[1]   created              the topic's stamp
ARGV[2]   verb                 what is resumed: receive or send
Returns   {1 resumed | 0 was not paused, setting, value, ...}, or {-1} if the topic is missing, is
          being deleted, or has another stamp
Cost      O(settings)
Atomic    Works while Redis is at maxmemory. A second run changes nothing.
]]
--- @keys topic
--- @include "lib/check"
--- @include "lib/topic"
if ARGV[2] ~= 'receive' and ARGV[2] ~= 'send' then
  fail('ARG', 'verb')
end
if not is_open(ARGV[1]) then
  return { -1 }
end
return change_reply(redis.call('HDEL', topic, 'paused_' .. ARGV[2]))
