--[[
job_step: record the outcomes of a job's batch, and note the next batch before its messages change.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   runner               id of the runner
ARGV[3]   hold_ms              1 to 86 400 000: how long its lease lasts from now on
ARGV[4]   number               of the batch that is recorded; 0 before the first batch
ARGV[5]   letters              the outcome of each member of the batch, as a character; '' if the
          batch is already recorded
ARGV[6]   examined             how many messages the job has examined up to the next batch
ARGV[7]   cursor               where the job continues after the next batch
ARGV[8]   slot                 index of the slot of the next batch
ARGV[9]   members              of the next batch, at most 1000, 13 bytes each; '' if there is no
          next batch here
ARGV[10]  last           ''    or 1: there is no next batch at all, so the job ends
ARGV[11]  keep_s               1 to 31 536 000: how long an ended job is kept
ARGV[12]  most                 1 to 100 000: how many outcomes are kept
Returns   {1 | 0 the runner does not have the job any more | -1 there is no such job, state, number
          of the noted batch, the server's time in epoch ms}
Cost      O(members)
Atomic    The numbers ensure that each batch is recorded once and noted once. A second run changes
          only the lease. While the job is paused or stopping, no batch is noted. Works while Redis
          is at maxmemory.
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
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('LLEN', joblog)
local state, runner, batch, recorded, noted, slot =
  unpack(redis.call('HMGET', job, 'state', 'runner', 'batch', 'recorded', 'members', 'slot'))
if not state then
  return { -1, '', 0, now }
end
batch, recorded = tonumber(batch), tonumber(recorded)
if runner ~= ARGV[2] then
  return { 0, state, batch, now }
end

-- Write the outcomes of the noted batch into the log, and count each kind of outcome.
local function record_outcomes()
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
end

-- Note the next batch of a running job. Return the state of the job and the number of the batch.
local function note_next()
  redis.call('HSET', job, 'examined', examined, 'cursor', ARGV[7])
  if members ~= '' then
    redis.call('HSET', job, 'batch', batch + 1, 'slot', ARGV[8], 'members', members, 'noted', now)
    return state, batch + 1
  end
  return ARGV[10] == '1' and 'done' or state, batch
end

redis.call('HDEL', job, '') -- needs no memory: after it, Redis does not check memory
redis.call('HSET', job, 'until', now + hold)
if number == batch and recorded == number - 1 then
  if #letters * MEMBER ~= #noted then
    fail('ARG', 'letters')
  end
  record_outcomes()
  recorded = number
end
if batch ~= recorded or number ~= batch then
  return { 1, state, batch, now }
end
if state == 'running' then
  state, batch = note_next()
elseif state == 'stopping' then
  state = 'stopped'
end
if state == 'done' or state == 'stopped' then
  end_job(state, now, keep)
end
return { 1, state, batch, now }
