--[[
batch_close: close a batch, so that its callback is sent when its last member ends.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   cancelled            0, or 1: mark the batch as cancelled
Returns   {state before, state now, number of open members}. The first is '' for a batch that does
          not exist
Cost      O(1)
Atomic    Without open members, the callback becomes a pending entry in this step. A batch that is
          done is not changed. A second run changes nothing.
]]
--- @keys slot batch pending targets
--- @include "lib/batches/batch"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
local now, now_us = clock(ARGV[1])
local cancels = whole_number(ARGV[2], 0, 1, 'cancelled')
local created = redis.call('HGET', slot, 'created')
if not created then
  fail('GONE', slot)
end
local state, open, cancelled = unpack(redis.call('HMGET', batch, '#state', '#open', '#cancelled'))
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', pending)
redis.call('ZCARD', targets)
if not state then
  return { '', '', 0 }
end
if state == 'd' or state == 'c' and (cancels == 0 or cancelled) then
  return { state, state, tonumber(open) }
end
allow_oom(pending)
redis.call('HSET', batch, '#state', 'c', '#touched', now)
if cancels == 1 then
  redis.call('HSET', batch, '#cancelled', 1)
end
finish_batch(now, now_us)
return { state, redis.call('HGET', batch, '#state'), tonumber(open) }
