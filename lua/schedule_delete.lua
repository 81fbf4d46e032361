--[[
schedule_delete: delete a schedule. Messages that it has sent stay.

KEYS[1]   slot           hash  settings and counters of slot 0
KEYS[2]   schedules      hash  see schedule_set
KEYS[3]   schedule times zset  name -> when its next time is due, epoch ms
ARGV[1]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[2]   name
Returns   1 deleted, 0 there is no such schedule
Cost      O(log S), S = schedules of the topic
Atomic    Types are checked first. The first write frees memory. With the last schedule a new generation begins
          (schedule_set). A second run finds nothing.
]]
--- @include "lib/schedules"
check_created(KEYS[1], ARGV[1])
local schedules, times, name = KEYS[2], KEYS[3], ARGV[2]
if not redis.call('ZSCORE', times, name) then
  redis.call('HLEN', schedules)
  return 0
end
redis.call('HDEL', schedules, fields_of(name))
redis.call('ZREM', times, name)
if redis.call('ZCARD', times) == 0 then
  redis.call('HDEL', schedules, 'clock')
  redis.call('HINCRBY', schedules, 'generation', 1)
end
return 1
