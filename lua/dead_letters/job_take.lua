--[[
job_take: take the lease of a job that nobody runs, renew it, or end it.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   runner               the id of the one who runs it
ARGV[3]   hold_ms              of the lease, counted from now, up to 86 400 000; 0: end it
Returns   {1 the runner has the lease | 0 it has not: another one does, or the job does not run | -1 there is no such job,
          the server's time in epoch ms, then all fields and values of the job}
Cost      O(fields)
Atomic    Works while Redis is at maxmemory: the first write needs no memory. A second run renews the lease again.
]]
--- @keys job
--- @include "lib/clock"
local now = clock(ARGV[1])
local hold = whole_number(ARGV[3], 0, HOLD_MOST_MS, 'hold_ms')
local state, runner, ends = unpack(redis.call('HMGET', job, 'state', 'runner', 'until'))
if not state then
  return { -1, now }
end
local mine = runner == ARGV[2]
local runs = state == 'running' or state == 'stopping'
local taken = 0
if runs and hold > 0 and (mine or tonumber(ends) <= now) then
  taken = 1
  redis.call('HDEL', job, '') -- a write that needs no memory: after it, Redis checks no more
  redis.call('HSET', job, 'runner', ARGV[2], 'until', now + hold)
elseif mine and hold == 0 then
  redis.call('HDEL', job, '')
  redis.call('HSET', job, 'runner', '', 'until', 0)
end
local reply = redis.call('HGETALL', job)
table.insert(reply, 1, now)
table.insert(reply, 1, taken)
return reply
