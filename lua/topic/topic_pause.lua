--[[
topic_pause: note in a topic that it is paused. Its slots follow by `slot`, which takes the newest revision.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp
ARGV[3]   verb                 what is paused: receive or send
ARGV[4]   by                   who pauses it, as text of one line
ARGV[5]   why                  text
Returns   {1 paused | 0 was paused already, setting, value, ...}, or {-1} where the topic is missing, is being deleted,
          or has another stamp
Cost      O(settings)
Atomic    The first pause stands, with its time, until `topic_resume`. Works while Redis is at maxmemory. A second run
          changes nothing.
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
local changed = 0
if redis.call('HEXISTS', topic, field) == 0 then
  changed = 1
  redis.call('HDEL', topic, field) -- a write that needs no memory: after it, Redis checks no more
  redis.call('HSET', topic, field, string.format('%.0f\n%s\n%s', now, ARGV[4], ARGV[5]))
end
return change_reply(changed)
