--[[
query_inspect: count the messages of a slot that are in flight for a query, and read its owner and
the owner's report. Changes nothing. The script only checks that the slot exists.

ARGV[1]   now_us         ''    or a test's time
Returns   {messages in flight, ms until the ownership ends, negative after that, the owner or '',
          its report or ''}
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
