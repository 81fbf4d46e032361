--[[
job_stop: end a job. A batch that is on its way is finished; what the job has not reached stays as it is.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   keep_s               how long a job is kept that ended, 1 to 31 536 000
Returns   {1 done | 0 it has ended | -1 there is no such job, the server's time in epoch ms}
Cost      O(1)
Atomic    Types are checked first. One state for another. A second run finds it stopped, or about to.
]]
--- @keys job joblog
--- @include "lib/clock"
--- @include "lib/dead_letters/jobs"
local now = clock(ARGV[1])
local keep = whole_number(ARGV[2], 1, JOB_KEPT_MOST_S, 'keep_s')
redis.call('LLEN', joblog)
local state, members = unpack(redis.call('HMGET', job, 'state', 'members'))
if state ~= 'running' and state ~= 'paused' then
  return { state and 0 or -1, now }
end
redis.call('HDEL', job, '') -- a write that needs no memory: after it, Redis checks no more
if members then
  redis.call('HSET', job, 'state', 'stopping')
else
  end_job('stopped', now, keep)
end
return { 1, now }
