--[[
lease_rollback: give back the deliveries of the shared lease with the earliest end, if it has ended.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000
Returns   {number given back, 1 if more deliveries have to be given back, else 0}
Cost      O(k log L), k = limit, L = leases of the slot
Atomic    Each delivery gets a deadline that has passed. `rollback_expired_leases` then treats it
          like any expired lease, at the cost of a retry. A lease that is partly given back can no
          longer be renewed. It is removed with its last delivery, or if it has no delivery.
          Deliveries whose lease is missing are also given back. `leases_until` of the slot is
          corrected. The first write needs no memory. A second run continues.
]]
--- @keys slot prepare leases queries
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/leases/shared_leases"
--- @include "lib/writes"
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 1, MOST, 'limit')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local first = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', queries)
-- Deliveries whose lease is missing, because somebody deleted the key, are given back at once.
local lowest = redis.call('ZRANGEBYSCORE', prepare,
  string.format('%.0f', (SHARED_DEADLINE + 1) * 1000),
  string.format('(%.0f', (SHARED_DEADLINE + SHARED_MOST + 1) * 1000), 'WITHSCORES', 'LIMIT', 0, 1)
local stray = lowest[2]
  and string.format('%d', math.floor(tonumber(lowest[2]) / 1000) - SHARED_DEADLINE)
if stray and not redis.call('ZSCORE', leases, stray) then
  first = { stray, 0 }
end
local low, high = range_of(first[1] and whole_number(first[1], 1, SHARED_MOST, 'number') or 0)
local page = redis.call('ZRANGEBYSCORE', prepare, low, high, 'WITHSCORES', 'LIMIT', 0, limit)
if not first[1] or tonumber(first[2]) > now then
  allow_oom(prepare)
  note_first_end()
  return { 0, 0 }
end
local deadlines = {}
for i = 1, #page, 2 do
  local receipt = tonumber(page[i + 1])
  deadlines[i], deadlines[i + 1] = ROLLED_BACK_END * 1000 + receipt % 1000, page[i]
end
allow_oom(prepare)
if #page > 0 then
  redis.call('ZADD', prepare, 'XX', unpack(deadlines))
end
if #page == 2 * limit then
  redis.call('ZADD', leases, 0, first[1])
else
  redis.call('ZREM', leases, first[1])
end
note_first_end()
local after = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
return { #page / 2, after[2] and tonumber(after[2]) <= now and 1 or 0 }
