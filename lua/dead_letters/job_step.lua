--[[
job_step: record what became of a job's batch, and note the next batch before its messages are touched.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   runner               the id of the one who runs it
ARGV[3]   hold_ms              of its lease, counted from now, 1 to 86 400 000
ARGV[4]   number               of the batch that is recorded; 0 before the first one
ARGV[5]   letters              what became of each of its members; '' where it is recorded already
ARGV[6]   examined             how many messages the job has looked at up to the next batch
ARGV[7]   cursor               where to go on behind the next batch
ARGV[8]   slot                 the index of the slot of the next batch
ARGV[9]   members              of the next batch, at most 1000, 13 bytes each; '' there is none here
ARGV[10]  last           ''    or 1: there is none at all, so the job ends
ARGV[11]  keep_s               how long a job is kept that ended, 1 to 31 536 000
ARGV[12]  most                 how many outcomes are kept, 1 to 100 000
Returns   {1 | 0 the runner does not have the job any more | -1 there is no such job, state, number of the batch that is
          noted, the server's time in epoch ms}
Cost      O(members)
Atomic    A batch is recorded once, and the next one noted once, by their numbers: a second run changes nothing but the
          lease. While the job is paused or stopping, none is noted. Works while Redis is at maxmemory.
]]
--- @keys job joblog
--- @include "lib/clock"
--- @include "lib/dead_letters/jobs"
--- @include "lib/member"
local now = clock(ARGV[1])
local hold = whole_number(ARGV[3], 1, HOLD_MOST_MS, 'hold_ms')
local number = whole_number(ARGV[4], 0, NUMBER_MOST, 'number')
local examined = whole_number(ARGV[6], 0, NUMBER_MOST, 'examined')
local keep = whole_number(ARGV[11], 1, JOB_KEPT_MOST_S, 'keep_s')
local most = whole_number(ARGV[12], 1, JOB_LOG_MOST, 'most')
local letters, members = ARGV[5], ARGV[9]
if #members % MEMBER ~= 0 or #members > 1000 * MEMBER then
  fail('ARG', 'members')
end
redis.call('LLEN', joblog)
local state, runner, batch, recorded, noted, slot = unpack(redis.call('HMGET', job, 'state', 'runner', 'batch', 'recorded',
  'members', 'slot'))
if not state then
  return { -1, '', 0, now }
end
batch, recorded = tonumber(batch), tonumber(recorded)
if runner ~= ARGV[2] then
  return { 0, state, batch, now }
end
redis.call('HDEL', job, '') -- a write that needs no memory: after it, Redis checks no more
redis.call('HSET', job, 'until', now + hold)
if number == batch and recorded == number - 1 then
  if #letters * MEMBER ~= #noted then
    fail('ARG', 'letters')
  end
  local entries, counts, order = {}, {}, {}
  for i = 1, #letters do
    local letter = string.sub(letters, i, i)
    if not counts[letter] then
      counts[letter] = 0
      order[#order + 1] = letter
    end
    counts[letter] = counts[letter] + 1
    entries[i] = letter .. slot .. ':' .. string.sub(noted, (i - 1) * MEMBER + 1, i * MEMBER)
  end
  for i = 1, #order do
    redis.call('HINCRBY', job, 'count_' .. order[i], counts[order[i]])
  end
  redis.call('RPUSH', joblog, unpack(entries))
  redis.call('LTRIM', joblog, -most, -1)
  redis.call('HSET', job, 'recorded', number)
  redis.call('HDEL', job, 'members')
  recorded = number
end
if batch == recorded and number == batch then
  if state == 'running' then
    redis.call('HSET', job, 'examined', examined, 'cursor', ARGV[7])
    if members ~= '' then
      batch = batch + 1
      redis.call('HSET', job, 'batch', batch, 'slot', ARGV[8], 'members', members, 'noted', now)
    elseif ARGV[10] == '1' then
      state = 'done'
    end
  elseif state == 'stopping' then
    state = 'stopped'
  end
  if state == 'done' or state == 'stopped' then
    end_job(state, now, keep)
  end
end
return { 1, state, batch, now }
