--[[
queries: list the queries that have messages of a slot in flight.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000 queries.
Returns   For each query, in the order in which their leases end: its run, and the ms until its
          lease ends, negative after that.
Cost      O(k), k = limit
Atomic    One moment of one slot. The only write corrects `leases_until` of the slot, which is when
          the first lease ends. Consumers search for expired leases if that time has passed. If it
          were too early, they would search each time. The write needs no memory. A second run does
          the same.
]]
--- @keys slot queries leases
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/leases/shared_leases"
--- @include "lib/writes"
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 1, MOST, 'limit')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local reply = redis.call('ZRANGE', queries, 0, limit - 1, 'WITHSCORES')
-- A key of a wrong type stops the script here.
redis.call('ZCARD', leases)
allow_oom(queries)
note_first_end()
for i = 2, #reply, 2 do
  reply[i] = math.floor(tonumber(reply[i])) - now
end
return reply
