--[[
topic_set: change settings of a topic that exists. Its slots follow by `slot`, which takes the newest revision.

ARGV[1]   created              the topic's stamp
ARGV[2]   revision             how often it was changed when the caller read it; '': whatever it is
ARGV[3..] pairs of setting, value
Returns   {1 changed | 0 had these values, setting, value, ...}, {-1} where the topic is missing, is being deleted,
          or has another stamp, or {-2} where it has another revision and other values
Cost      O(settings)
Atomic    All pairs are written, and the revision grows by one, or nothing happens. A second run changes nothing.
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
if changed == 1 and revision and revision ~= tonumber(redis.call('HGET', topic, 'revision') or 0) then
  return { -2 }
end
if changed == 1 then
  redis.call('HSET', topic, unpack(ARGV, 3))
end
return change_reply(changed)
