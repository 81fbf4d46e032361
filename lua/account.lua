--[[
account: a producer that numbers its messages tells up to which number they were accepted, and which numbers
no message has: merged, duplicate, refused. Its first call, before its first message, is where its numbers begin.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   audit          zset  ranges of numbers that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   producer             10 hex digits
ARGV[3]   from                 what it told before, 0 at first: numbers up to here are old news
ARGV[4]   sent                 every number up to here is with an accepted message, or accounted for
ARGV[5..] pairs of first, last: numbers accounted for; at most 1000 pairs, and 1000 numbers
Returns   how many numbers were accounted for by this call
Cost      O(n log L), n = numbers, L = ranges
Atomic    Types and numbers are checked before the first write, which needs no memory. Run twice, the second
          run finds nothing to account for. A newcomer takes along what is left of up to ten producers that
          were not heard of for a day and have nothing open.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drain"
--- @include "lib/account"
local YOUNG_MS, HEARD_MS, GONE_MS, LARGEST = 10000, 60000, 86400000, 999999999999999
local slot, audit, producer = KEYS[1], KEYS[2], ARGV[2]
local now = clock(ARGV[1])
if #producer ~= 10 or not string.find(producer, '^%x+$') then
  fail('ARG', 'producer')
end
local from, sent = whole(ARGV[3], 0, LARGEST, 'from'), whole(ARGV[4], 0, LARGEST, 'sent')
if #ARGV % 2 ~= 0 or #ARGV > 2004 then
  fail('ARG', 'count')
end
local numbers = 0
for i = 5, #ARGV, 2 do
  local first = whole(ARGV[i], 1, LARGEST, 'first')
  numbers = numbers + whole(ARGV[i + 1], first, LARGEST, 'last') - first + 1
end
if numbers > 1000 then
  fail('ARG', 'count')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local function rest()
  return redis.call('ZRANGEBYLEX', audit, '[' .. producer .. ':~', '[' .. producer .. ':~~', 'LIMIT', 0, 1)[1]
end
local known = rest()
drain(audit)
if not known then
  redis.call('ZADD', audit, 0, rest_of(producer, from + 1, now, from))
  redis.call('HSET', slot, 'audited', 1)
  -- Names of producers are random, so those that follow are ten of all, whoever comes.
  local others = redis.call('ZRANGEBYLEX', audit, '(' .. producer .. ':~~', '+', 'LIMIT', 0, 10)
  for o = 1, #others do
    local other, low, high, heard, told = read_range(others[o])
    if other and not high and low > told and heard < now - GONE_MS then
      local open = redis.call('ZRANGEBYLEX', audit, '[' .. other .. ':', '[' .. other .. ':~~', 'LIMIT', 0, 11)
      local promised = #open > 10
      for i = 1, #open do
        local _, first = read_range(open[i])
        promised = promised or first <= told
      end
      if not promised then
        redis.call('ZREM', audit, unpack(open))
      end
    end
  end
end

local taken = 0
for i = 5, #ARGV, 2 do
  taken = taken + account(audit, producer, tonumber(ARGV[i]), tonumber(ARGV[i + 1]), now)
end
if taken > 0 then
  redis.call('HINCRBY', slot, 'accounted', taken)
end

local member = rest()
local _, first, _, heard, told = read_range(member)
if sent > told or now - heard > HEARD_MS then
  redis.call('ZREM', audit, member)
  if sent >= first then
    -- What is open of them is known from now on; a range that is nearly as new grows, to keep ranges few.
    local low, since = first, now
    local before = redis.call('ZREVRANGEBYLEX', audit, '[' .. producer .. ':~', '[' .. producer .. ':', 'LIMIT', 0, 1)[1]
    if before then
      local _, its_first, its_last, its_since = read_range(before)
      if its_last == first - 1 and now - its_since < YOUNG_MS then
        low, since = its_first, its_since
        redis.call('ZREM', audit, before)
      end
    end
    redis.call('ZADD', audit, 0, range_of(producer, low, sent, since))
    first = sent + 1
  end
  redis.call('ZADD', audit, 0, rest_of(producer, first, now, math.max(sent, told)))
  if sent > told then
    redis.call('HINCRBY', slot, 'numbered', sent - told)
  end
end
return taken
