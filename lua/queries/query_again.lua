--[[
query_again: give a batch that a query holds new numbers, so that it is the next batch once more.
The slot is only checked to exist.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: which process runs the query
ARGV[4]   upto                 the batch ends with this number
Returns   {how many messages it holds, the newest number, ms the other owner has left, the other
          owner}: the last two only where another owner runs the query, and nothing was done
Cost      O(c), c = ids in the log whose lease expired
Atomic    All held messages get numbers beyond the newest, in the same order. Ids whose lease
          expired leave the log: they were never handed out. The first write needs no memory. A
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
local left, other = other_owner(state, ARGV[3], now)
local first, tail, expired_to = log_range(state, 0)
if other then
  return { tail - expired_to, tail, left, other }
end
if tonumber(state[SETTLED] or 0) >= math.min(upto, tail) then
  return { tail - expired_to, tail }
end
local held = tail - expired_to
redis.call('LTRIM', querylog, expired_to - first, -1)
if expired_to < upto then
  tail = tail + held
end
redis.call('HSET', query, 'tail', tail, 'settled', math.min(upto, tail))
return { held, tail }
