--[[
event_register: add messages that wait for an event to its waiters.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] for each message, at most 500: its name, `<topic>:<index>:<member>`, and the end of its
          time limit, epoch ms
Returns   {time of the event, epoch ms, its data} if the event was signalled before.
          The call adds no waiters, and the caller delivers the event (event_deliver). Else {0, ''}
Cost      O(n log W), W = waiters
Atomic    The waiters expire a day after the last of their time limits. A call also removes up to
          1000 waiters whose time limit ended a day ago. Redis refuses the first write at maxmemory.
          A second run adds nothing.
]]
--- @keys event waiters
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/event"
--- @include "lib/member"
local NAMES_FROM, NAMES_MOST = 2, 500
local now = clock(ARGV[1])
local n = (#ARGV - NAMES_FROM + 1) / 2
if n < 1 or n > NAMES_MOST or n % 1 ~= 0 then
  fail('ARG', 'messages')
end
local given, last = {}, 0
for i = 1, n do
  local name = ARGV[2 * i]
  local limit = whole_number(ARGV[2 * i + 1], 0, NUMBER_MOST, 'until_ms')
  local member_at = string.match(name, '^[%w._-]+:%d+:()')
  if not member_at or #name - member_at + 1 ~= MEMBER then
    fail('ARG', 'name')
  end
  given[2 * i - 1], given[2 * i], last = ARGV[2 * i + 1], name, math.max(last, limit)
end
local stored = redis.call('HGET', event, 'e')
if stored then
  return { read48(stored, 1), string.sub(stored, EVENT_HEAD + 1) }
end
local left = redis.call('PTTL', waiters)
redis.call('ZADD', waiters, unpack(given))
local old = redis.call('ZRANGEBYSCORE', waiters, '-inf', now - DAY_MS, 'LIMIT', 0, MOST)
if #old > 0 then
  redis.call('ZREM', waiters, unpack(old))
end
redis.call('PEXPIRE', waiters, string.format('%.0f', math.max(left, last - now + DAY_MS, 1)))
return { 0, '' }
