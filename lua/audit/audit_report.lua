--[[
audit_report: a producer of numbered messages reports up to which number they were accepted, and which numbers no message has
(merged, duplicate, refused). Its first call, before its first message, is where its numbers begin. lib/audit describes
the members of `audit`.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   producer             10 hex digits
ARGV[3]   from                 what it reported before, 0 at first: numbers up to here are old news
ARGV[4]   sent                 every number up to here has an accepted message, or is accounted for
ARGV[5..] pairs of first, last: numbers to account for; at most 1000 pairs, and 1000 numbers
Returns   how many numbers this call accounted for
Cost      O(n log L), n = numbers, L = ranges
Atomic    Types and numbers are checked before the first write, which needs no memory. A second run finds nothing to
          account for. The first call of a producer also removes what is left of up to ten producers that were not
          heard of for a day and have nothing open.
]]
--- @keys slot audit
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/audit"
local LARGEST = 999999999999999
local YOUNG_MS = 10000 -- a range that is younger than this grows
local HEARD_MS = 60000 -- how often a producer is noted as heard of
local GONE_MS = 86400000 -- a producer that was not heard of for so long is forgotten
local producer = ARGV[2]
local now = clock(ARGV[1])
if #producer ~= 10 or not string.find(producer, '^%x+$') then
  fail('ARG', 'producer')
end
local from, sent = whole_number(ARGV[3], 0, LARGEST, 'from'), whole_number(ARGV[4], 0, LARGEST, 'sent')
if #ARGV % 2 ~= 0 or #ARGV > 2004 then
  fail('ARG', 'count')
end
local numbers = 0
for i = 5, #ARGV, 2 do
  local first = whole_number(ARGV[i], 1, LARGEST, 'first')
  numbers = numbers + whole_number(ARGV[i + 1], first, LARGEST, 'last') - first + 1
end
if numbers > 1000 then
  fail('ARG', 'count')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local function read_future()
  return redis.call('ZRANGEBYLEX', audit, '[' .. producer .. ':~', '[' .. producer .. ':~~', 'LIMIT', 0, 1)[1]
end
local future = read_future()
allow_oom(audit)
if not future then
  redis.call('ZADD', audit, 0, future_member(producer, from + 1, now, from))
  redis.call('HSET', slot, 'audited', 1)
  -- Names of producers are random, so the next ten in their order are any ten of them.
  local others = redis.call('ZRANGEBYLEX', audit, '(' .. producer .. ':~~', '+', 'LIMIT', 0, 10)
  for o = 1, #others do
    local other, low, high, heard, reported = parse_member(others[o])
    if other and not high and low > reported and heard < now - GONE_MS then
      local open = redis.call('ZRANGEBYLEX', audit, '[' .. other .. ':', '[' .. other .. ':~~', 'LIMIT', 0, 11)
      local has_reported = #open > 10
      for i = 1, #open do
        local _, first = parse_member(open[i])
        has_reported = has_reported or first <= reported
      end
      if not has_reported then
        redis.call('ZREM', audit, unpack(open))
      end
    end
  end
end

local closed = 0
for i = 5, #ARGV, 2 do
  closed = closed + close_range(producer, tonumber(ARGV[i]), tonumber(ARGV[i + 1]), now)
end
if closed > 0 then
  redis.call('HINCRBY', slot, 'accounted', closed)
end

future = read_future()
local _, first, _, heard, reported = parse_member(future)
if sent > reported or now - heard > HEARD_MS then
  redis.call('ZREM', audit, future)
  if sent >= first then
    -- Their open numbers become a range of their own, or join the range before, if that is young: it keeps ranges few.
    local low, since = first, now
    local before = redis.call('ZREVRANGEBYLEX', audit, '[' .. producer .. ':~', '[' .. producer .. ':', 'LIMIT', 0, 1)[1]
    if before then
      local _, its_first, its_last, its_since = parse_member(before)
      if its_last == first - 1 and now - its_since < YOUNG_MS then
        low, since = its_first, its_since
        redis.call('ZREM', audit, before)
      end
    end
    redis.call('ZADD', audit, 0, range_member(producer, low, sent, since))
    first = sent + 1
  end
  redis.call('ZADD', audit, 0, future_member(producer, first, now, math.max(sent, reported)))
  if sent > reported then
    redis.call('HINCRBY', slot, 'numbered', sent - reported)
  end
end
return closed
