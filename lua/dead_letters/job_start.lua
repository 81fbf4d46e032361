--[[
job_start: store a job. A runner then takes its lease.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] fields and values of the definition
Returns   {1 stored | 0 there is a job with this id already, when it began in epoch ms}
Cost      O(1)
Atomic    Redis refuses the first write at maxmemory. A second run finds the job.
]]
--- @keys job
--- @include "lib/clock"
local now = clock(ARGV[1])
if #ARGV < 3 or #ARGV % 2 == 0 then
  fail('ARG', 'fields')
end
local began = redis.call('HGET', job, 'began')
if began then
  return { 0, tonumber(began) }
end
redis.call('HSET', job, 'began', now, 'state', 'running', 'runner', '', 'until', 0, 'batch', 0,
  'recorded', 0, unpack(ARGV, 2))
return { 1, now }
