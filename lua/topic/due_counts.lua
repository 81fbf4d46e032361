--[[
due_counts: count the waiting messages of a slot by due time. Changes nothing.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] boundaries           ms from now, ascending; 1 to 60
Returns   For each boundary, the number of timed messages that are due by then and after the
          previous boundary. Then the number that is due after the last boundary. A message that was
          given back is due. Last, the number of retries and messages with a priority: they have no
          due time.
Cost      O(b log L), b = boundaries, L = waiting messages
Atomic    Reads only: one moment of one slot.
]]
--- @keys slot store
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/scores/score_ranges"
local BOUNDARIES_MOST = 60
local now = clock(ARGV[1])
if not redis.call('HGET', slot, 'created') then
  fail('GONE', slot)
end
if #ARGV < 2 or #ARGV > 1 + BOUNDARIES_MOST then
  fail('ARG', 'count')
end
local boundaries = {}
for i = 2, #ARGV do
  boundaries[i - 1] = whole_number(ARGV[i], 0, SPAN_MOST_MS, 'boundary')
  if i > 2 and boundaries[i - 1] <= boundaries[i - 2] then
    fail('ARG', 'boundary')
  end
end
local reply, from = {}, string.format('%.0f', PRIORITY_END)
for i = 1, #boundaries do
  -- The score of a due time has a fraction, so the range ends before the next ms.
  local past = string.format('%.0f', now + boundaries[i] + 1)
  reply[i] = redis.call('ZCOUNT', store, from, '(' .. past)
  from = past
end
reply[#reply + 1] = redis.call('ZCOUNT', store, from, '+inf')
reply[#reply + 1] = redis.call('ZCOUNT', store, '-inf', '(' .. PRIORITY_END)
return reply
