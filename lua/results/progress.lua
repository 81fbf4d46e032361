--[[
progress: report the progress of a delivery, for the sender that waits for its result.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   member               13 bytes: the id without slot and checksum
ARGV[3]   receipt              of the delivery
ARGV[4]   details              msgpack of [fraction, text, attempt, worker], at most 4096 bytes
Returns   1 stored; 0 the receipt is no longer valid; 2 the message keeps no result; 3 the
          cancellation of the delivery was requested. Only 1 changes something
Cost      O(log L + size of the record), L = leases of the slot
Atomic    The entry replaces the earlier progress of the message. It has no end of keeping: the end
          of the message replaces it. Redis refuses the write at maxmemory. A second run writes the
          same entry again, with its time.
]]
--- @keys slot prepare records results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/records/record_bytes"
--- @include "lib/results/keep_mark"
--- @include "lib/results/results"
local DETAILS_MOST = 4096 -- bytes
local now = clock(ARGV[1])
local id, receipt = ARGV[2], tonumber(ARGV[3])
if #id ~= MEMBER then
  fail('ARG', 'id')
end
if not receipt then
  fail('ARG', 'receipt')
end
if #ARGV[4] > DETAILS_MOST then
  fail('ARG', 'details')
end
local created, cancelling, outcomes =
  unpack(redis.call('HMGET', slot, 'created', 'cancelling', 'outcomes'))
if not created then
  fail('GONE', slot)
end
local score = redis.call('ZSCORE', prepare, id)
local record = redis.call('HGET', records, id)
-- A key of a wrong type stops the script here.
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
if not score or tonumber(score) ~= receipt then
  return 0
end
if cancelling then
  --- @include "lib/settle/cancel_requests"
  local is_cancelled = find_requests({ id }, { score })[1]
  if is_cancelled then
    return 3
  end
end
if not outcomes or (keep_of(record) or 0) == 0 then
  return 2
end
redis.call('HSET', results, id, 'r' .. write48(now) .. ARGV[4])
redis.call('ZREM', keeping, id) -- of an earlier message with this id
publish_results('progress', { id })
return 1
