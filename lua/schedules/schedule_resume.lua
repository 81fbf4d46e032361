--[[
schedule_resume: resume a paused schedule, from a later time.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp as the caller opened it. Another stamp is an error.
ARGV[3]   name
ARGV[4]   revision             of the schedule, as the caller read it
ARGV[5]   next_ms              its next time, epoch ms
ARGV[6]   due_ms               the same with its jitter
Returns   1 resumed; 0 it was not paused; -1 there is no such schedule; -2 nothing, because the
          schedule has another revision
Cost      O(log S), S = schedules of the topic
Atomic    Types are checked first. A second run finds the schedule resumed.
]]
--- @keys slot schedules schedule_times
--- @include "lib/clock"
--- @include "lib/schedules"
local now = clock(ARGV[1])
check_created(ARGV[2])
check_times(ARGV[5], ARGV[6])
local name = ARGV[3]
local schedule, due = read_schedule(name), redis.call('ZSCORE', schedule_times, name)
if not due then
  return -1
end
if due ~= 'inf' then
  return 0
end
if schedule[3] ~= ARGV[4] then
  return -2
end
note_move(name, ARGV[5], now)
redis.call('ZADD', schedule_times, ARGV[6], name)
return 1
