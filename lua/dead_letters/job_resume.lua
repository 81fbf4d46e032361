--[[
job_resume: resume a paused job.

ARGV[1]   now_us         ''    or a test's time
Returns   {1 done | 0 it is not paused | -1 there is no such job, the server's time in epoch ms}
Cost      O(1)
Atomic    The state changes. A second run finds the job running.
]]
--- @keys job
--- @include "lib/clock"
--- @include "lib/dead_letters/jobs"
local now = clock(ARGV[1])
return change_state('paused', 'running', now)
