--[[
batch_open: create a batch, or look at a batch that exists.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   target               slot of the callback: `<topic>:<index>`
ARGV[3]   callback             member, head, and rest of the record, as for ack_then
ARGV[4]   counts_at            where the counts are in the callback: bytes before them
ARGV[5]   dead                 count or wait: whether a dead letter has ended
ARGV[6]   timeout_ms           when a server closes the batch, ms from now; 0: never
ARGV[7]   keep_ms              for how long the batch is kept after its end
Returns   {1 created or 0 it exists, its state, its `#dead`, the topic of its callback}
Cost      O(1)
Atomic    A batch that exists is not changed. Redis refuses the write at maxmemory. A second run
          answers that the batch exists.
]]
--- @keys slot batch
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/records/record"
local COUNTS = 90 -- bytes
local KEEP_MOST = 315360000000 -- ms, ten years
local now = clock(ARGV[1])
local target, callback, dead = ARGV[2], ARGV[3], ARGV[5]
if not string.find(target, '^[%w._-]+:%d+$') or #target > 133 then
  fail('ARG', 'target')
end
if #callback < MEMBER + HEAD + COUNTS then
  fail('ARG', 'callback')
end
local counts_at = whole_number(ARGV[4], MEMBER + HEAD, #callback - COUNTS, 'counts_at')
if dead ~= 'count' and dead ~= 'wait' then
  fail('ARG', 'dead')
end
local timeout = whole_number(ARGV[6], 0, KEEP_MOST, 'timeout_ms')
local keep = whole_number(ARGV[7], 1, KEEP_MOST, 'keep_ms')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local state, known_dead, known_target =
  unpack(redis.call('HMGET', batch, '#state', '#dead', '#target'))
if state then
  return { 0, state, known_dead, known_target }
end
redis.call('HSET', batch, '#state', 'o', '#open', 0, '#all', 0, '#topics', '', '#target', target,
  '#callback', callback, '#counts_at', counts_at, '#dead', dead, '#keep', keep, '#created', now,
  '#touched', now, '#timeout', timeout > 0 and now + timeout or 0)
return { 1, 'o', dead, target }
