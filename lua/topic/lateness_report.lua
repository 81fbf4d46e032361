--[[
lateness_report: add to the counts of how late messages of a topic were received
(rmq/kernel/core/metrics.py). The field `lateness` of the slot has one count for each bucket.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3..] deliveries           how many to add to each bucket; 1 to 64 buckets
Returns   1
Cost      O(buckets)
Atomic    One write, which Redis refuses at maxmemory. A call that is sent twice is added once.
]]
--- @keys slot
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
local BUCKETS_MOST = 64
local now = clock(ARGV[1])
if #ARGV < 3 or #ARGV > 2 + BUCKETS_MOST then
  fail('ARG', 'count')
end
local counts = {}
for i = 3, #ARGV do
  counts[i - 2] = whole_number(ARGV[i], 0, DELIVERIES_MOST, 'deliveries')
end
local created, lateness = unpack(redis.call('HMGET', slot, 'created', 'lateness'))
if not created then
  fail('GONE', slot)
end
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return 1
end
local bucket = 0
for count in string.gmatch(lateness or '', '%d+') do
  bucket = bucket + 1
  counts[bucket] = (counts[bucket] or 0) + tonumber(count)
end
for i = 1, #counts do
  counts[i] = string.format('%.0f', counts[i])
end
redis.call('HSET', slot, 'lateness', table.concat(counts, ' '))
remember(ARGV[2], now, '1')
return 1
