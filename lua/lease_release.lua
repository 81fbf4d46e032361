--[[
lease_release: give back the deliveries of a shared lease that no handler has started, for a worker
that has died. It costs no retry. `failures` and `records` are only read: whether a message has
failed before, and its group.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   number               number of the lease
ARGV[5]   limit                1 to 1000
ARGV[6..] members              started deliveries, at most 1000, 13 bytes each; they stay until the
          lease ends, as do deliveries whose cancellation was requested
Returns   the number given back; a number below the limit is the end
Cost      O((n + s) log L), n = limit, s = started deliveries, L = members of the slot. The records
          of the deliveries are read.
Atomic    Each delivery goes where `release` would put it. The newest deliveries of a lease are
          given back first, so the oldest delivery is at the front in the end. The first write frees
          memory.
          A second run continues.
]]
--- @keys slot store prepare failures records
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/slot_fields"
--- @include "lib/member"
--- @include "lib/leases/receipt"
--- @include "lib/leases/shared_leases"
--- @include "lib/records/place_in_record"
local now = clock(ARGV[1])
local number = whole_number(ARGV[4], 1, SHARED_MOST, 'number')
local limit = whole_number(ARGV[5], 1, MOST, 'limit')
if #ARGV > 1005 then
  fail('ARG', 'count')
end
local started = {}
for i = 6, #ARGV do
  if #ARGV[i] ~= MEMBER then
    fail('ARG', 'member')
  end
  started[ARGV[i]] = true
end
local fields = read_return_fields()
if not fields[CREATED] then
  fail('GONE', slot)
end
-- A key of a wrong type stops the script here.
redis.call('ZCARD', store)
redis.call('HLEN', failures)
redis.call('HLEN', records)
local low, high = range_of(number)
local page = redis.call('ZREVRANGEBYSCORE', prepare, high, low, 'WITHSCORES', 'LIMIT', 0,
  limit + #ARGV - 5 + math.min(tonumber(fields[CANCELLING] or 0), MOST))
local last_delivery = tonumber(fields[DELIVERED] or 0)
local deliveries = {}
for i = 1, #page, 2 do
  local id, receipt = page[i], tonumber(page[i + 1])
  local stays = started[id] or fields[CANCELLING] and redis.call('HEXISTS', slot, '~' .. id) == 1
  local record = not stays and #deliveries < limit and redis.call('HGET', records, id)
  local place = place_in_record(record)
  if place then -- without a place, a message waits for the end of the lease
    local behind = (last_delivery - receipt % 1 * DELIVERY_CYCLE) % DELIVERY_CYCLE
    deliveries[#deliveries + 1] = { id = id, receipt = receipt, place = place, behind = behind }
  end
end
if #deliveries == 0 then
  return 0
end
table.sort(deliveries, function(a, b) -- by delivery number
  return a.behind > b.behind
end)
local released = { ids = {}, receipts = {}, places = {} }
for m = 1, #deliveries do
  local delivery = deliveries[m]
  released.ids[m], released.receipts[m] = delivery.id, delivery.receipt
  released.places[m] = delivery.place
end
--- @include "lib/settle/release_deliveries"
release_deliveries(released, fields, 0, now)
signal_given_back(fields, false, ARGV[2], ARGV[3], now)
return #deliveries
