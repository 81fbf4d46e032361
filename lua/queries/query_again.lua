--[[
query_again: give the messages of a query new numbers, so that they are the next batch once more.
The script only checks that the slot exists.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: the process that runs the query
ARGV[4]   upto                 last number of the batch
Returns   {messages in flight for the query, the newest number}.
          If another owner runs the query, nothing changes, and two values follow:
           ms until its ownership ends,
           the other owner.
Cost      O(c), c = ids in the log whose lease has expired
Atomic    All messages in flight get numbers after the newest, in the same order. Ids whose lease
          has expired leave the log: they were never handed out. The first write needs no memory. A
          second run finds nothing to do.
]]
--- @keys slot query querylog
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/query"
local now = clock(ARGV[1])
check_names(ARGV[2], ARGV[3])
local upto = whole_number(ARGV[4], 0, NUMBER_MOST, 'upto')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local state = read_query()
local other_ms, other = other_owner(state, ARGV[3], now)
local before_log, tail, expired_to = log_range(state, 0)
local in_flight = tail - expired_to
if other then
  return { in_flight, tail, other_ms, other }
end
if tonumber(state[SETTLED] or 0) >= math.min(upto, tail) then
  return { in_flight, tail }
end
redis.call('LTRIM', querylog, expired_to - before_log, -1)
if expired_to < upto then
  tail = tail + in_flight
end
redis.call('HSET', query, 'tail', tail, 'settled', math.min(upto, tail))
return { in_flight, tail }
