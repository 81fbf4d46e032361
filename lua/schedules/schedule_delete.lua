--[[
schedule_delete: delete a schedule. Messages that it has sent stay.

ARGV[1]   created              the topic's stamp as the caller opened it. Another stamp is an error.
ARGV[2]   name
Returns   1 deleted, 0 there is no such schedule
Cost      O(log S), S = schedules of the topic
Atomic    Types are checked first. The first write frees memory. The deletion of the last schedule
          begins a new generation (schedule_set). A second run finds nothing.
]]
--- @keys slot schedules schedule_times
--- @include "lib/schedules"
check_created(ARGV[1])
local name = ARGV[2]
if not redis.call('ZSCORE', schedule_times, name) then
  redis.call('HLEN', schedules)
  return 0
end
redis.call('HDEL', schedules, fields_of(name))
redis.call('ZREM', schedule_times, name)
if redis.call('ZCARD', schedule_times) == 0 then
  redis.call('HDEL', schedules, 'clock')
  redis.call('HINCRBY', schedules, 'generation', 1)
end
return 1
