--[[
lease_renew: renew a shared lease, so all deliveries of a slot that a worker process has under its
number.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               number of the lease
ARGV[3]   lease_ms             1000 to 43 200 000, from now
Returns   {ms until the lease ends, or 0 if the lease is gone, because some or all of its deliveries
          were rolled back; number of deliveries of the slot whose cancellation was requested}
Cost      O(log l), l = leases of the slot; the same for any number of deliveries
Atomic    A renewal never shortens a lease. An expired lease is also renewed, if no delivery of it
          was rolled back. The first write needs no memory. A second run does the same.
]]
--- @keys slot leases queries
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/leases/shared_leases"
--- @include "lib/writes"
local now = clock(ARGV[1])
local number = whole_number(ARGV[2], 1, SHARED_MOST, 'number')
local lease = whole_number(ARGV[3], LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
local created, cancelling = unpack(redis.call('HMGET', slot, 'created', 'cancelling'))
if not created then
  fail('GONE', slot)
end
local member = string.format('%d', number)
local before = tonumber(redis.call('ZSCORE', leases, member) or 0)
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', queries)
if before <= 0 then
  return { 0, 0 }
end
local lease_end = math.max(before, now + lease)
allow_oom(leases)
redis.call('ZADD', leases, lease_end, member)
note_first_end()
return { lease_end - now, tonumber(cancelling or 0) }
