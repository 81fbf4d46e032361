--[[
topic_resize: change the fields of a topic for its number of slots and the progress of a resize. The
caller then calls `slot` for each slot, which applies the newest revision.

ARGV[1]   created              the topic's stamp
ARGV[2]   revision             as the caller read it
ARGV[3..] pairs of field, value; an empty value removes the field
Returns   {1 changed | 0 the topic has another revision, field, value, ...}, or {-1} if the topic is
          missing, is being deleted, or has another stamp
Cost      O(settings)
Atomic    All pairs are written and the revision grows by one, or nothing changes. A second run
          finds another revision.
]]
--- @keys topic
--- @include "lib/topic"
local revision = whole_number(ARGV[2], 0, EXACT_MOST, 'revision')
if #ARGV < 4 or #ARGV % 2 ~= 0 then
  fail('ARG', 'pairs')
end
if not is_open(ARGV[1]) then
  return { -1 }
end
if tonumber(redis.call('HGET', topic, 'revision') or 0) ~= revision then
  return change_reply(0)
end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then
    redis.call('HSET', topic, ARGV[i], ARGV[i + 1])
  end
end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', topic, ARGV[i])
  end
end
return change_reply(1)
