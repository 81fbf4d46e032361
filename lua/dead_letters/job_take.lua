--[[
job_take: take the lease of a job without a runner, renew it, or end it.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   runner               id of the runner
ARGV[3]   hold_ms              of the lease, from now on, up to 86 400 000; 0: end it
Returns   {1 the runner has the lease | 0 it does not: another runner has it, or the job is not
          running | -1 there is no such job, the server's time in epoch ms, all fields and values of
          the job}
Cost      O(fields)
Atomic    Works while Redis is at maxmemory: the first write needs no memory. A second run renews
          the lease again.
]]
--- @keys job
--- @include "lib/clock"
local now = clock(ARGV[1])
local hold = whole_number(ARGV[3], 0, HOLD_MOST_MS, 'hold_ms')
local state, runner, ends = unpack(redis.call('HMGET', job, 'state', 'runner', 'until'))
if not state then
  return { -1, now }
end
local is_mine = runner == ARGV[2]
local is_running = state == 'running' or state == 'stopping'
local has_lease = 0
if is_running and hold > 0 and (is_mine or tonumber(ends) <= now) then
  has_lease = 1
  redis.call('HDEL', job, '') -- needs no memory: after it, Redis does not check memory
  redis.call('HSET', job, 'runner', ARGV[2], 'until', now + hold)
elseif is_mine and hold == 0 then
  redis.call('HDEL', job, '')
  redis.call('HSET', job, 'runner', '', 'until', 0)
end
local reply = redis.call('HGETALL', job)
table.insert(reply, 1, now)
table.insert(reply, 1, has_lease)
return reply
