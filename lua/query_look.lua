--[[
query_look: tell how much a query holds of a slot, and who runs it. Changes nothing.

KEYS[1]   slot           hash  only looked at: it is there
KEYS[2]   query          hash  tail: the number of the newest in the log; owner, and until when it is that
KEYS[3]   query log      list  ids of what the query holds; the last one's number is the tail
ARGV[1]   now_us         ''    or a test's time
Returns   {how many messages it holds, ms its owner has left, the owner}: negative where that has passed; '' where
          there is none
Cost      O(1)
Atomic    Reads only: one moment of one slot.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/query"
local now = clock(ARGV[1])
if redis.call('HEXISTS', KEYS[1], 'created') == 0 then
  fail('GONE', KEYS[1])
end
local q = redis.call('HMGET', KEYS[2], 'owner', 'owner_until')
local _, tail, lapsed = extent(KEYS[2], KEYS[3], 0)
return { tail - lapsed, q[1] and tonumber(q[2] or 0) - now or 0, q[1] or '' }
