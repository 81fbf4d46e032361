--[[
audit_report: report which numbers a producer has sent, and which numbers no message has (merged,
duplicate, refused). A producer calls it first before its first message: its numbers begin there.
lib/audit describes the members of the key `audit`.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   producer             10 hex digits
ARGV[3]   from                 the largest number that it has reported before, 0 at first
ARGV[4]   sent                 each number up to this has an accepted message or is accounted for
ARGV[5..] pairs of first, last number to account for; at most 1000 pairs, and 1000 numbers
Returns   number of the numbers that this call accounted for
Cost      O(n log L), n = numbers, L = ranges
Atomic    Types and numbers are checked before the first write, which needs no memory. A second run
          finds nothing to account for. The first call of a producer also removes up to ten
          producers that have not reported for a day and have no open numbers.
]]
--- @keys slot audit
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/audit"
local LARGEST = 999999999999999
local YOUNG_MS = 10000 -- a range that is younger than this may grow
local HEARD_MS = 60000 -- how often the time of a producer's last report is written
local GONE_MS = 86400000 -- a producer without reports for this time is forgotten
local OTHERS_MOST, OPEN_MOST = 10, 10 -- producers that are checked, and open ranges of a producer
local producer = ARGV[2]
local now = clock(ARGV[1])
if #producer ~= 10 or not string.find(producer, '^%x+$') then
  fail('ARG', 'producer')
end
local from = whole_number(ARGV[3], 0, LARGEST, 'from')
local sent = whole_number(ARGV[4], 0, LARGEST, 'sent')
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

-- Return the member for all numbers of the producer that it has not sent yet, or nil.
local function read_future()
  local low, high = '[' .. producer .. ':~', '[' .. producer .. ':~~'
  return redis.call('ZRANGEBYLEX', audit, low, high, 'LIMIT', 0, 1)[1]
end

-- Remove a producer if all numbers that it has reported are accounted for.
local function remove_if_done(other, reported)
  local low, high = '[' .. other .. ':', '[' .. other .. ':~~'
  local open = redis.call('ZRANGEBYLEX', audit, low, high, 'LIMIT', 0, OPEN_MOST + 1)
  if #open > OPEN_MOST then
    return
  end
  for i = 1, #open do
    local _, first = parse_member(open[i])
    if first <= reported then
      return
    end
  end
  redis.call('ZREM', audit, unpack(open))
end

-- Remove some producers that have not reported for a day. Names of producers are random, so the
-- next ten in their order are a random choice.
local function forget_producers()
  local low = '(' .. producer .. ':~~'
  local others = redis.call('ZRANGEBYLEX', audit, low, '+', 'LIMIT', 0, OTHERS_MOST)
  for i = 1, #others do
    local other, first, last, heard, reported = parse_member(others[i])
    if other and not last and first > reported and heard < now - GONE_MS then
      remove_if_done(other, reported)
    end
  end
end

-- Add the numbers from `first` up to `sent` to the open numbers: as a range, or to the previous
-- range of the producer if that is young. This keeps the number of ranges small.
local function open_range(first)
  local since = now
  local low, high = '[' .. producer .. ':', '[' .. producer .. ':~'
  local before = redis.call('ZREVRANGEBYLEX', audit, high, low, 'LIMIT', 0, 1)[1]
  local _, before_first, before_last, before_since = parse_member(before or '')
  if before_last == first - 1 and now - before_since < YOUNG_MS then
    first, since = before_first, before_since
    redis.call('ZREM', audit, before)
  end
  redis.call('ZADD', audit, 0, range_member(producer, first, sent, since))
end

local is_known = read_future()
allow_oom(audit)
if not is_known then
  redis.call('ZADD', audit, 0, future_member(producer, from + 1, now, from))
  redis.call('HSET', slot, 'audited', 1)
  forget_producers()
end

local closed = 0
for i = 5, #ARGV, 2 do
  closed = closed + close_range(producer, tonumber(ARGV[i]), tonumber(ARGV[i + 1]), now)
end
if closed > 0 then
  redis.call('HINCRBY', slot, 'accounted', closed)
end

local future = read_future()
local _, first, _, heard, reported = parse_member(future)
if sent <= reported and now - heard <= HEARD_MS then
  return closed
end
redis.call('ZREM', audit, future)
if sent >= first then
  open_range(first)
  first = sent + 1
end
redis.call('ZADD', audit, 0, future_member(producer, first, now, math.max(sent, reported)))
if sent > reported then
  redis.call('HINCRBY', slot, 'numbered', sent - reported)
end
return closed
