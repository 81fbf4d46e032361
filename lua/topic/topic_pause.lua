--[[
topic_pause: pause sends to a topic, or receives from it. The caller then calls `slot` for each
slot, which applies the newest revision.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp
ARGV[3]   verb                 what is paused: receive or send
ARGV[4]   by                   the user or program that pauses it, as text of one line
ARGV[5]   why                  the reason, as text
Returns   {1 paused | 0 was paused before, setting, value, ...}, or {-1} if the topic is missing, is
          being deleted, or has another stamp
Cost      O(settings)
Atomic    The first pause, with its time, is kept until `topic_resume`. Works while Redis is at
          maxmemory. A second run changes nothing.
]]
--- @keys topic
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/topic"
local now = clock(ARGV[1])
if ARGV[3] ~= 'receive' and ARGV[3] ~= 'send' then
  fail('ARG', 'verb')
end
if string.find(ARGV[4], '\n', 1, true) then
  fail('ARG', 'by')
end
if not is_open(ARGV[2]) then
  return { -1 }
end
local field = 'paused_' .. ARGV[3]
if redis.call('HEXISTS', topic, field) == 1 then
  return change_reply(0)
end
redis.call('HDEL', topic, field) -- needs no memory: after it, Redis does not check memory
redis.call('HSET', topic, field, string.format('%.0f\n%s\n%s', now, ARGV[4], ARGV[5]))
return change_reply(1)
