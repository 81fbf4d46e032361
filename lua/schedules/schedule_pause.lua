--[[
schedule_pause: pause a schedule until schedule_resume.

ARGV[1]   created              the topic's stamp as the caller opened it. Another stamp is an error.
ARGV[2]   name
Returns   1 paused; 0 it was paused, or has no more times; -1 there is no such schedule
Cost      O(log S), S = schedules of the topic
Atomic    One write. A second run finds the schedule paused.
]]
--- @keys slot schedule_times
--- @include "lib/schedules"
check_created(ARGV[1])
local due = redis.call('ZSCORE', schedule_times, ARGV[2])
if not due then
  return -1
end
if due == 'inf' then
  return 0
end
redis.call('ZADD', schedule_times, '+inf', ARGV[2])
return 1
