--[[
rollback_expired_leases: give back deliveries whose lease has expired. Each costs its message a
retry. A message goes where `nack` would put it. A message whose cancellation was requested is
deleted instead.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   limit                1 to 1000
Returns   {number given back for a retry, number dead, 1 if more leases may have expired, else 0,
          number deleted because their cancellation was requested}
Cost      O(n log L), n = expired leases, L = members of the slot. In a slot in order, the records
          are also read.
Atomic    A lease is given back once, however many callers find it. The first write frees memory. A
          second run gives back the leases that the first run left.
]]
--- @keys slot store prepare records dead failures audit bodies settled0 settled1 pending targets results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/slot_fields"
local now, now_us = clock(ARGV[1])
local limit = whole_number(ARGV[4], 1, MOST, 'limit')
local fields = read_return_fields()
if not fields[CREATED] then
  fail('GONE', slot)
end
-- The receipts of expired leases are below the first receipt of the next second.
local high = string.format('(%.0f', (math.floor(now / 1000) + 1) * 1000)
local expired = redis.call('ZRANGEBYSCORE', prepare, '-inf', high, 'WITHSCORES', 'LIMIT', 0, limit)
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', store)
redis.call('HLEN', records)
redis.call('ZCARD', dead)
redis.call('HLEN', failures)
redis.call('HLEN', bodies)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
if fields[AUDITED] then
  redis.call('ZCARD', audit)
end
if fields[DEAD_TO] then
  redis.call('ZCARD', pending)
  redis.call('ZCARD', targets)
end
if #expired == 0 then
  return { 0, 0, 0, 0 }
end
local ids, receipts = {}, {}
for i = 1, #expired, 2 do
  ids[#ids + 1] = expired[i]
  receipts[#ids] = expired[i + 1]
end
local expired_count = #ids
local more = expired_count == limit and 1 or 0
--- @include "lib/settle/fail_deliveries"
if fields[CANCELLING] then
  --- @include "lib/settle/end_cancelled"
  end_cancelled('', 0, { ids = ids, receipts = receipts, more = {} }, now)
end
local dead_count = 0
if #ids > 0 then
  -- Without details, an entry keeps the details of the previous attempt.
  local failed = { ids = ids, receipts = receipts, details = {}, reason = 'l' }
  local _, died = fail_deliveries(failed, fields, now, now_us)
  dead_count = died
  redis.call('HINCRBY', slot, 'rolled_back', #ids)
end
signal_given_back(fields, false, ARGV[2], ARGV[3], now)
return { #ids - dead_count, dead_count, more, expired_count - #ids }
