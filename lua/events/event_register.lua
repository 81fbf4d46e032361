--[[
event_register: add messages that wait for an event to its waiters.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] for each message, at most 500: its name, `<topic>:<index>:<member>`, and the end of its
          time limit, epoch ms
Returns   {time of the event, epoch ms, its data}: the event was signalled before. The caller
          delivers it (event_deliver), and nothing is added. Else {0, ''}
Cost      O(n log W), W = waiters
Atomic    The waiters expire a day after the last of their time limits. Redis refuses the first
          write at maxmemory. A second run adds nothing.
]]
--- @keys event waiters
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/event"
local now = clock(ARGV[1])
local n = (#ARGV - 1) / 2
if n < 1 or n > MOST / 2 or n % 1 ~= 0 then
  fail('ARG', 'messages')
end
local given, last = {}, 0
for i = 1, n do
  local name, until_ms = ARGV[2 * i], whole_number(ARGV[2 * i + 1], 0, NUMBER_MOST, 'until')
  if not string.find(name, '^[%w._-]+:%d+:') or #name > 160 then
    fail('ARG', 'name')
  end
  given[2 * i - 1], given[2 * i], last = until_ms, name, math.max(last, until_ms)
end
local stored = redis.call('GET', event)
if stored then
  return { read48(stored, 1), string.sub(stored, EVENT_HEAD + 1) }
end
local left = redis.call('PTTL', waiters)
redis.call('ZADD', waiters, unpack(given))
redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now - DAY_MS)
redis.call('PEXPIRE', waiters, string.format('%.0f', math.max(left, last - now + DAY_MS, 1)))
return { 0, '' }
