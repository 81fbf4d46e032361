--[[
job_pause: pause a job until job_resume. Its current batch is finished.

KEYS[1]   job            hash  definition, state and progress of a job
ARGV[1]   now_us         ''    or a test's time
Returns   {1 done | 0 it does not run | -1 there is no such job, the server's time in epoch ms}
Cost      O(1)
Atomic    One state for another. A second run finds it paused.
]]
--- @include "lib/clock"
--- @include "lib/jobs"
return change_state(KEYS[1], 'running', 'paused', clock(ARGV[1]))
