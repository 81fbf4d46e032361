--[[
job_stop: end a job. A batch that has begun is finished. Other messages are not changed.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   keep_s               1 to 31 536 000: how long an ended job is kept
Returns   {1 done | 0 it has ended | -1 there is no such job, the server's time in epoch ms}
Cost      O(1)
Atomic    Types are checked first. A second run finds the job stopped or stopping.
]]
--- @keys job joblog
--- @include "lib/clock"
--- @include "lib/dead_letters/jobs"
local now = clock(ARGV[1])
local keep = whole_number(ARGV[2], 1, JOB_KEPT_MOST_S, 'keep_s')
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('LLEN', joblog)
local state, members = unpack(redis.call('HMGET', job, 'state', 'members'))
if state ~= 'running' and state ~= 'paused' then
  return { state and 0 or -1, now }
end
redis.call('HDEL', job, '') -- needs no memory: after it, Redis does not check memory
if members then
  redis.call('HSET', job, 'state', 'stopping')
else
  end_job('stopped', now, keep)
end
return { 1, now }
