--[[
topic_set: change settings of an existing topic. The caller then calls `slot` for each slot, which
applies the newest revision.

ARGV[1]   created              the topic's stamp
ARGV[2]   revision             as the caller read it; '': any
ARGV[3..] pairs of setting, value
Returns   {1 changed | 0 had these values, setting, value, ...}; {-1} if the topic is missing, is
          being deleted, or has another stamp; {-2} if it has another revision and other values
Cost      O(settings)
Atomic    All pairs are written and the revision grows by one, or nothing changes. A second run
          changes nothing.
]]
--- @keys topic
--- @include "lib/topic"
if not is_open(ARGV[1]) then
  return { -1 }
end
local revision = ARGV[2] ~= '' and whole_number(ARGV[2], 0, NUMBER_MOST, 'revision')
local changed = 0
for i = 3, #ARGV, 2 do
  if redis.call('HGET', topic, ARGV[i]) ~= ARGV[i + 1] then
    changed = 1
  end
end
if changed == 0 then
  return change_reply(0)
end
if revision and revision ~= tonumber(redis.call('HGET', topic, 'revision') or 0) then
  return { -2 }
end
redis.call('HSET', topic, unpack(ARGV, 3))
return change_reply(1)
