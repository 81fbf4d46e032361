--[[
lease_release: give back the deliveries of one shared lease that no handler was called with, for a worker that has died. It
costs no retry. `failures` and `records` are only read: whether a message has failed before, and its group.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   number               of the lease
ARGV[5]   limit                1 to 1000
ARGV[6..] members              at most 1000, 13 bytes each: deliveries that had begun; they stay until the lease ends
Returns   how many were given back; less than the limit is the end
Cost      O((n + b) log L), n = limit, b = deliveries that had begun, L = members of the slot; their records are read
Atomic    Each goes where `release` would put it. Of a page the newest deliveries come first, so that page by page the oldest
          stands in front. The first write frees memory. A second run goes on.
]]
--- @keys slot store prepare failures records
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/leases/receipt"
--- @include "lib/records/record_bytes"
--- @include "lib/scores/score_ranges"
--- @include "lib/leases/shared_leases"
local now = clock(ARGV[1])
local number = whole_number(ARGV[4], 1, SHARED_MOST, 'number')
local limit = whole_number(ARGV[5], 1, MOST, 'limit')
if #ARGV > 1005 then
  fail('ARG', 'count')
end
local begun = {}
for i = 6, #ARGV do
  if #ARGV[i] ~= MEMBER then
    fail('ARG', 'member')
  end
  begun[ARGV[i]] = true
end
local created, max_retries, front, waiting, retry, ordered, blocked, delivered = unpack(redis.call('HMGET', slot, 'created',
  'max_retries', 'front', 'waiting', 'retry', 'ordered', 'blocked', 'delivered'))
if not created then
  fail('GONE', slot)
end
redis.call('ZCARD', store)
redis.call('HLEN', failures)
redis.call('HLEN', records)
local low, high = range_of(number)
local page = redis.call('ZREVRANGEBYSCORE', prepare, high, low, 'WITHSCORES', 'LIMIT', 0, limit + #ARGV - 5)
local held = {}
for i = 1, #page, 2 do
  local record = not begun[page[i]] and #held < limit and redis.call('HGET', records, page[i])
  local place = record and #record >= FIXED and priority_of(record)
  if place == 0 and #record >= 14 then
    place = read48(record, 9)
  end
  -- One whose record says no place waits for the end of the lease.
  if place and place >= PRIORITY_MIN and (place < PRIORITY_END or place >= TIMED_MIN) then
    local receipt = tonumber(page[i + 1])
    held[#held + 1] = { page[i], receipt, place, (tonumber(delivered or 0) - receipt % 1 * DELIVERY_CYCLE) % DELIVERY_CYCLE }
  end
end
if #held == 0 then
  return 0
end
table.sort(held, function(a, b) -- by delivery number
  return a[4] > b[4]
end)
local held_ids, receipts, places = {}, {}, {}
for m = 1, #held do
  held_ids[m], receipts[m], places[m] = held[m][1], held[m][2], held[m][3]
end
--- @include "lib/settle/release_deliveries"
release_deliveries(held_ids, receipts, places, 0, max_retries, retry, front, ordered, now)
signal_given_back(blocked, waiting, false, ARGV[2], ARGV[3], now)
return #held
