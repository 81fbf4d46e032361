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
--- @include "lib/leases/receipt"
--- @include "lib/settle/check_dead_keys"
--- @include "lib/slot_fields"
local now, now_us = clock(ARGV[1])
local limit = whole_number(ARGV[4], 1, MOST, 'limit')
local fields = read_return_fields()
if not fields[CREATED] then
  fail('GONE', slot)
end
local upper_bound = end_of_expired(now)
local expired =
  redis.call('ZRANGEBYSCORE', prepare, '-inf', upper_bound, 'WITHSCORES', 'LIMIT', 0, limit)
redis.call('ZCARD', store)
check_dead_keys(fields[AUDITED], fields[DEAD_TO])
if #expired == 0 then
  return { 0, 0, 0, 0 }
end
local ids, receipts = {}, {}
for i = 1, #expired, 2 do
  ids[#ids + 1] = expired[i]
  receipts[#ids] = expired[i + 1]
end
local expired_count = #ids
local may_be_more = expired_count == limit and 1 or 0
--- @include "lib/settle/fail_deliveries"
if fields[CANCELLING] then
  --- @include "lib/settle/remove_cancelled_from"
  -- This shortens ids and receipts.
  remove_cancelled_from({ ids = ids, receipts = receipts }, now)
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
return { #ids - dead_count, dead_count, may_be_more, expired_count - #ids }
