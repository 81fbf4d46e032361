--[[
schedule_set: store a schedule, or change it if its definition differs. A schedule has the fields
`<name>:definition`, `:timing`, `:revision`, `:next`, `:last`, `:sent` and `:moved`. Its time is
+inf if it is paused or has no more times.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp as the caller opened it. Another stamp is an error.
ARGV[3]   name
ARGV[4]   definition           msgpack of the client
ARGV[5]   timing               text; if the stored schedule has the same text, it keeps its next
          time
ARGV[6]   next_ms              the next time, epoch ms
ARGV[7]   due_ms               the same with its jitter
ARGV[8]   most                 maximum number of schedules of the topic
ARGV[9]   generation           of the entry that the caller has made in the list of topics with
          schedules: how often the topic's last schedule was deleted
Returns   'created', 'updated' or 'unchanged'; 'full' if the topic has `most` schedules; 'stale' if
          the topic has another generation
Cost      O(log S), S = schedules of the topic, and the size of the definition
Atomic    Redis refuses the first write at maxmemory. A second run finds the same definition and
          changes nothing. A paused schedule stays paused.
]]
--- @keys slot schedules schedule_times
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/schedules"
local now = clock(ARGV[1])
local name = ARGV[3]
check_created(ARGV[2])
if #ARGV ~= 9 or name == '' then
  fail('ARG', 'name')
end
local most = whole_number(ARGV[8], 1, SCHEDULES_MOST, 'most')
check_times(ARGV[6], ARGV[7])
if generation_of() ~= ARGV[9] then
  return 'stale'
end
local before = read_schedule(name)
local due = redis.call('ZSCORE', schedule_times, name)
if due and before[1] == ARGV[4] and before[2] == ARGV[5] then
  return 'unchanged'
end
if not due and redis.call('ZCARD', schedule_times) >= most then
  return 'full'
end
local revision = redis.call('HINCRBY', schedules, 'revision', 1)
redis.call('HSET', schedules, name .. ':definition', ARGV[4], name .. ':timing', ARGV[5],
  name .. ':revision', revision)
if not due or before[2] ~= ARGV[5] then
  note_move(name, ARGV[6], now)
  if due ~= 'inf' or before[4] == '' then
    redis.call('ZADD', schedule_times, ARGV[7], name)
  end
end
return due and 'updated' or 'created'
