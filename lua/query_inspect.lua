--[[
query_inspect: how many messages a query holds of a slot, which owner runs it, and what that told of itself. Changes nothing.

KEYS[1]   slot           hash  only checked to exist
KEYS[2]   query          hash  tail: the newest number in the log; owner and owner_until; report
KEYS[3]   query log      list  members that the query holds; the last one has the number `tail`
ARGV[1]   now_us         ''    or a test's time
Returns   {how many messages it holds, ms its owner has left, the owner, its report}: negative after that; '' where there is none
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
local state = read_query(KEYS[2])
local _, tail, expired_to = log_range(state, KEYS[3], 0)
local left, owner = owner_of(state, now)
return { tail - expired_to, left, owner, redis.call('HGET', KEYS[2], 'report') or '' }
