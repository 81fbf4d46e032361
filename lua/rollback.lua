--[[
rollback: give leases back that expired. Each costs a retry, and the message goes where a nack would put it.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   limit                1 to 1000
Returns   {given back for a retry, dead, 1 if more are waiting}
Cost      O(n log L), n = expired leases, L = members of the slot. In a slot in order also reading their records
Atomic    A lease goes back once, however many callers find it. The first write frees memory. A second run finds the
          leases that the first one left.
]]
--- @keys slot store prepare records dead failures audit bodies
--- @include "lib/check"
--- @include "lib/clock"
local now, now_us = clock(ARGV[1])
local limit = whole_number(ARGV[4], 1, MOST, 'limit')
local created, max_retries, ladder, jitter, waiting, retention, ordered, blocked, audited = unpack(redis.call('HMGET', slot,
  'created', 'max_retries', 'retry', 'jitter', 'waiting', 'dead_retention_ms', 'ordered', 'blocked', 'audited'))
if not created then
  fail('GONE', slot)
end
-- Every receipt of a deadline that has passed is below the first one of the next second.
local expired = redis.call('ZRANGEBYSCORE', prepare, '-inf',
  '(' .. string.format('%.0f', (math.floor(now / 1000) + 1) * 1000), 'WITHSCORES', 'LIMIT', 0, limit)
redis.call('ZCARD', store)
redis.call('HLEN', records)
redis.call('ZCARD', dead)
redis.call('HLEN', failures)
redis.call('HLEN', bodies)
if audited then
  redis.call('ZCARD', audit)
end
if #expired == 0 then
  return { 0, 0, 0 }
end
local ids, receipts = {}, {}
for i = 1, #expired, 2 do
  ids[#ids + 1] = expired[i]
  receipts[#ids] = expired[i + 1]
end
local details = {} -- that of the attempt before stays
--- @include "lib/settle/fail_deliveries"
local letters, dead_count = fail_deliveries(ids, receipts, details, 'l', false, max_retries, ladder, jitter,
  retention, ordered, audited, now, now_us)
signal_given_back(blocked, waiting, false, ARGV[2], ARGV[3], now)
redis.call('HINCRBY', slot, 'rolled_back', #ids)
return { #ids - dead_count, dead_count, #ids == limit and 1 or 0 }
