--[[
query_inspect: how many messages a query holds of a slot, which owner runs it, and what that told of
itself. Changes nothing. The slot is only checked to exist.

ARGV[1]   now_us         ''    or a test's time
Returns   {how many messages it holds, ms its owner has left, the owner, its report}: negative after
          that; '' where there is none
Cost      O(1)
Atomic    Reads only: one moment of one slot.
]]
--- @keys slot query querylog
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/query"
local now = clock(ARGV[1])
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local state = read_query()
local _, tail, expired_to = log_range(state, 0)
local left, owner = owner_of(state, now)
return { tail - expired_to, left, owner, redis.call('HGET', query, 'report') or '' }
