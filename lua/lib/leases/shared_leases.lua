--[[
Shared leases: one lease for all deliveries of a slot to a worker process.

A lease has a number, and `leases` has its end. The deadline in the receipts of its deliveries is
SHARED_DEADLINE + number, a time that never comes. So these deliveries are one range of the
PrepareQueue, and a renewal of the lease changes none of them. An end of 0 says that the deliveries
are being rolled back, and that the lease can no longer be renewed.

`leases_until` of the slot is the end of the first lease of a query, or shared lease. It is never
too late. If it is too early, the next rollback corrects it.
]]
--- @needs slot queries leases
--- @include "lib/check"
--- @include "lib/leases/receipt"

-- Return the range of scores of the deliveries under a shared lease.
local function range_of(number)
  local first = (SHARED_DEADLINE + number) * 1000
  return string.format('%.0f', first), string.format('(%.0f', first + 1000)
end

-- Return the end of the shared lease of a receipt, epoch ms; '' if the delivery has a lease of its
-- own, or belongs to a query.
local function shared_end(receipt)
  local number = math.floor(receipt / 1000) - SHARED_DEADLINE
  if number < 1 or number > SHARED_MOST then
    return ''
  end
  return math.floor(tonumber(redis.call('ZSCORE', leases, string.format('%d', number)) or 0))
end

-- Write when the first lease of a query, or shared lease, ends.
local function note_first_end()
  local first_query = redis.call('ZRANGE', queries, 0, 0, 'WITHSCORES')
  local first_shared = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
  local first = math.min(tonumber(first_query[2] or math.huge),
    tonumber(first_shared[2] or math.huge))
  if first < math.huge then
    redis.call('HSET', slot, 'leases_until', string.format('%.0f', first))
  else
    redis.call('HDEL', slot, 'leases_until')
  end
end

-- Return the number and the end of the shared lease of a take: the named lease. If it is gone, or
-- `number` is 0, create a lease. A worker renews its lease, so less than half of it is left only
-- after a pause. Then the take renews it. `until_ms`: `leases_until` of the slot.
--- @inline
local function lease_for_take(number, lease_end, lease, now, until_ms)
  if number == 0 or lease_end <= 0 then
    -- The number comes from the clock. If Redis lost its last second, or the slot was created
    -- again, a counter would repeat numbers that workers still use. These numbers repeat after ten
    -- days.
    number, lease_end = now % SHARED_MOST + 1, 0
    while redis.call('ZSCORE', leases, string.format('%d', number)) do
      number = number % SHARED_MOST + 1
    end
  end
  if lease_end - now < lease / 2 then
    lease_end = now + lease
    redis.call('ZADD', leases, lease_end, string.format('%d', number))
    if not until_ms or lease_end < until_ms then
      redis.call('HSET', slot, 'leases_until', string.format('%.0f', lease_end))
    end
  end
  return number, lease_end
end
