--[[
batch_end: report how members of a batch have ended.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   touched        ''    or #touched as the caller has read it. If it has changed, no member
          ends
ARGV[3..] for each member, at most 500: its id in 26 characters, and a letter: s h d c e p o as in
          lib/results/results; l it was not found; x it is no member, because a message from outside
          of the batch has its id. A dead letter for which the batch waits is always a member
Returns   {state, number of open members, number of members that have ended in this call}. The
          state is '' for a batch that does not exist
Cost      O(n)
Atomic    A member ends once; further reports change nothing. If the batch waits for dead letters, d
          leaves a member open. With the last open member of a closed batch, the callback becomes a
          pending entry in this step. With `touched`, #touched is not changed, so that the caller
          can end more members. Works while Redis is at maxmemory.
]]
--- @keys slot batch pending targets
--- @include "lib/batches/batch"
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
local ENDS_FROM = 3
local now, now_us = clock(ARGV[1])
local touched = ARGV[2] ~= '' and whole_number(ARGV[2], 0, NUMBER_MOST, 'touched')
local n = (#ARGV - ENDS_FROM + 1) / 2
if n < 1 or n > MOST / 2 or n % 1 ~= 0 then
  fail('ARG', 'members')
end
local ids = {}
for i = 1, n do
  ids[i] = ARGV[ENDS_FROM + 2 * i - 2]
  if #ids[i] ~= 26 then
    fail('ARG', 'id')
  end
  if not string.find(ARGV[ENDS_FROM + 2 * i - 1], '^[shdcepolx]$') then
    fail('ARG', 'letter')
  end
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local state, open, all, dead, touched_now =
  unpack(redis.call('HMGET', batch, '#state', '#open', '#all', '#dead', '#touched'))
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', pending)
redis.call('ZCARD', targets)
if not state then
  return { '', 0, 0 }
end
if touched and touched ~= tonumber(touched_now) then
  return { state, tonumber(open), 0 }
end
local known = redis.call('HMGET', batch, unpack(ids))
local changed, removed, counts, seen, ended = {}, {}, {}, {}, 0
for i = 1, n do
  local id, letter, value = ids[i], ARGV[ENDS_FROM + 2 * i - 1], known[i]
  local open_state = letter == 'x' and '^[.]' or '^[.!]'
  local is_member_open = value and not seen[id] and string.find(value, open_state)
  seen[id] = true
  if is_member_open and letter == 'd' and dead == 'wait' then
    changed[#changed + 1], changed[#changed + 2] = id, '!' .. string.sub(value, 2)
  elseif is_member_open and letter == 'x' then
    removed[#removed + 1] = id
  elseif is_member_open then
    changed[#changed + 1], changed[#changed + 2] = id, letter .. string.sub(value, 2)
    counts[letter] = (counts[letter] or 0) + 1
    ended = ended + 1
  end
end
if #changed == 0 and #removed == 0 then
  return { state, tonumber(open), 0 }
end
allow_oom(pending)
if #changed > 0 then
  redis.call('HSET', batch, unpack(changed))
end
if #removed > 0 then
  redis.call('HDEL', batch, unpack(removed))
end
for i = 1, #END_LETTERS do
  local letter = string.sub(END_LETTERS, i, i)
  if counts[letter] then
    redis.call('HINCRBY', batch, '#' .. letter, counts[letter])
  end
end
open = open - ended - #removed
redis.call('HSET', batch, '#open', open, '#all', all - #removed, '#touched', touched or now)
finish_batch(now, now_us)
return { redis.call('HGET', batch, '#state'), open, ended }
