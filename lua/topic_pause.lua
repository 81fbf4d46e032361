--[[
topic_pause: note in a topic that it is paused. Its slots follow by `slot`, which takes the newest revision.

KEYS[1]   topic          hash  the settings of the topic, by name, when it was created and how often it was changed
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp
ARGV[3]   verb                 what is paused: receive
ARGV[4]   by                   who pauses it, as text of one line
ARGV[5]   why                  text
Returns   {1 paused | 0 was paused already, setting, value, ...}, or {-1} where the topic is missing, is being deleted,
          or has another stamp
Cost      O(settings)
Atomic    The first pause stands, with its time, until `topic_resume`. Works while Redis is at maxmemory. A second run
          changes nothing.
]]
--- @include "lib/check"
--- @include "lib/clock"
local topic = KEYS[1]
local now = clock(ARGV[1])
whole_number(ARGV[2], 0, 9e15, 'created')
if ARGV[3] ~= 'receive' then
  fail('ARG', 'verb')
end
if string.find(ARGV[4], '\n', 1, true) then
  fail('ARG', 'by')
end
local field = 'paused_' .. ARGV[3]
local s = redis.call('HMGET', topic, 'created', 'deleting', field)
if s[1] ~= ARGV[2] or s[2] then
  return { -1 }
end
if not s[3] then
  redis.call('HDEL', topic, field) -- a write that needs no memory: after it, Redis checks no more
  redis.call('HSET', topic, field, string.format('%.0f\n%s\n%s', now, ARGV[4], ARGV[5]))
  redis.call('HINCRBY', topic, 'revision', 1)
end
local reply = redis.call('HGETALL', topic)
table.insert(reply, 1, s[3] and 0 or 1)
return reply
