--[[
event_waiters: forget the waiters that got an event, and return the next waiters.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   key                  of the event, 1 to 255 bytes
ARGV[3]   limit                most waiters to return, 1 to 1000
ARGV[4..] at most 1000 waiters that got the event, or no longer wait for it
Returns   {time of the event, epoch ms, its data, waiters that have not got it}; {0, ''} without an
          event
Cost      O(n log W), W = waiters
Atomic    Without further waiters, the event expires at the end of its keeping. Works while Redis is
          at maxmemory. A second run forgets nothing.
]]
--- @keys event waiters undelivered
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/event"
--- @include "lib/events/event_bounds"
--- @include "lib/writes"
local GIVEN_FROM = 4
local now = clock(ARGV[1])
local key = ARGV[2]
if #key < 1 or #key > KEY_MOST then
  fail('ARG', 'key')
end
local limit = whole_number(ARGV[3], 1, MOST, 'limit')
if #ARGV - GIVEN_FROM + 1 > MOST then
  fail('ARG', 'waiters')
end
local stored = redis.call('HGET', event, 'e')
-- A key of a wrong type stops the script here.
redis.call('ZCARD', waiters)
allow_oom(undelivered)
if #ARGV >= GIVEN_FROM then
  redis.call('ZREM', waiters, unpack(ARGV, GIVEN_FROM))
end
if not stored then
  redis.call('ZREM', undelivered, key)
  return { 0, '' }
end
local names = next_waiters(key, stored, limit, now)
return { read48(stored, 1), string.sub(stored, EVENT_HEAD + 1), unpack(names) }
