--[[
event_signal: signal an event. Only the first signal of a key stores its event.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   key                  of the event, 1 to 255 bytes
ARGV[3]   data                 the number of a codec in one byte, and the body, at most 256 KiB; or
                               ''
ARGV[4]   keep_ms              for how long messages may still begin to wait for the event
ARGV[5]   limit                most waiters to return, 1 to 1000
Returns   {1 stored, or 0 the key has an event already; time of the event, epoch ms; its data;
          waiters that have not got it}. The caller delivers the event to these waiters
          (event_deliver), and then calls event_waiters
Cost      O(log W + n), W = waiters, n = limit
Atomic    Redis refuses the first write at maxmemory. A second run finds the event, and returns the
          waiters that are left.
]]
--- @keys event waiters undelivered
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/event"
--- @include "lib/events/event_bounds"
local now = clock(ARGV[1])
local key, data = ARGV[2], ARGV[3]
if #key < 1 or #key > KEY_MOST then
  fail('ARG', 'key')
end
if #data > DATA_MOST then
  fail('ARG', 'data')
end
local keep = whole_number(ARGV[4], 1, WAIT_MOST_MS, 'keep_ms')
local limit = whole_number(ARGV[5], 1, MOST, 'limit')
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', waiters)
redis.call('ZCARD', undelivered)
local stored, is_new = redis.call('HGET', event, 'e'), 0
if not stored then
  stored, is_new = write48(now) .. write48(now + keep) .. data, 1
  redis.call('HSET', event, 'e', stored)
end
local names = next_waiters(key, stored, limit, now)
return { is_new, read48(stored, 1), string.sub(stored, EVENT_HEAD + 1), unpack(names) }
