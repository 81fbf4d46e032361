--[[
schedule_pause: pause a schedule until schedule_resume.

KEYS[1]   slot           hash  settings and counters of slot 0
KEYS[2]   schedule times zset  name -> when its next time is due, epoch ms
ARGV[1]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[2]   name
Returns   1 paused, 0 it was paused, or no time is left; -1 there is no such schedule
Cost      O(log S), S = schedules of the topic
Atomic    One write. A second run finds it paused.
]]
--- @include "lib/schedules"
check_created(KEYS[1], ARGV[1])
local due = redis.call('ZSCORE', KEYS[2], ARGV[2])
if not due then
  return -1
end
if due == 'inf' then
  return 0
end
redis.call('ZADD', KEYS[2], '+inf', ARGV[2])
return 1
