--[[
schedules: read one schedule of a topic, or a page of all its schedules.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   name           ''    for all schedules
ARGV[3]   offset               of the page, in the order of due times
ARGV[4]   limit                1 to 100
Returns   {now ms, generation (schedule_set), and for each schedule: name, due time as text,
          definition, revision, next time, last time sent or '', number of messages sent}. The due
          time is inf if the schedule is paused or has no more times.
Cost      O(log S + k), S = schedules of the topic, k = schedules returned
Atomic    Only reads. A schedule that moves between two pages may be on both pages, or on none.
]]
--- @keys slot schedules schedule_times
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/schedules"
local now = clock(ARGV[1])
local name = ARGV[2]
local offset = whole_number(ARGV[3], 0, SCHEDULES_MOST, 'offset')
local limit = whole_number(ARGV[4], 1, 100, 'limit')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local reply, rows = { now, generation_of() }, nil
if name == '' then
  rows = redis.call('ZRANGE', schedule_times, offset, offset + limit - 1, 'WITHSCORES')
else
  rows = { name, redis.call('ZSCORE', schedule_times, name) }
end
for i = 1, #rows, 2 do
  local s = rows[i + 1] and read_schedule(rows[i])
  if s and s[1] then
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = rows[i], rows[i + 1], s[1], s[3] or '0'
    reply[n + 5], reply[n + 6], reply[n + 7] = s[4] or '', s[5] or '', s[6] or '0'
  end
end
return reply
