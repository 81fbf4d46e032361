--[[
query_again: give a batch that a query holds new numbers, so that it is the next one once more.

KEYS[1]   slot           hash  only looked at: it is there
KEYS[2]   query          hash  tail: the number of the newest in the log; settled; owner, and until when it is that
KEYS[3]   query log      list  ids of what the query holds; the last one's number is the tail
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                who runs it, 1 to 200 bytes
ARGV[4]   upto                 the batch ends with this number
Returns   {how many messages it holds, the newest number, ms the owner has left, the owner}: the last two only where
          another one has it, and nothing was done
Cost      O(c), c = ids in the log that have lapsed
Atomic    All that is held gets numbers beyond the newest one, in the same order. What has lapsed leaves the log: it
          was never handed out. The first write needs no memory. Run twice, the second run finds nothing to do.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/query"
local query, log = KEYS[2], KEYS[3]
local now = clock(ARGV[1])
names(ARGV[2], ARGV[3])
local upto = whole(ARGV[4], 0, 9e15, 'upto')
if redis.call('HEXISTS', KEYS[1], 'created') == 0 then
  fail('GONE', KEYS[1])
end
local other, left = foreign(query, ARGV[3], now)
local first, tail, lapsed = extent(query, log, 0)
if other then
  return { tail - lapsed, tail, left, other }
end
if tonumber(redis.call('HGET', query, 'settled') or 0) >= math.min(upto, tail) then
  return { tail - lapsed, tail }
end
local held = tail - lapsed
redis.call('LTRIM', log, lapsed - first, -1)
if lapsed < upto then
  tail = tail + held
end
redis.call('HSET', query, 'tail', tail, 'settled', math.min(upto, tail))
return { held, tail }
