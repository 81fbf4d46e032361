--[[
due_counts: count the waiting messages of a slot by when they are due. Changes nothing.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] boundaries           ms from now, rising; 1 to 60
Returns   for each boundary, how many timed messages are due then or before, and after the boundary before it; then how
          many are due after the last one. A message that was handed back is due. Last, how many have no due time:
          retries and priorities, which may be taken at once or are held behind others of their groups
Cost      O(b log L), b = boundaries
Atomic    Reads only: one moment of one slot.
]]
--- @keys slot store
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/scores/score_ranges"
local now = clock(ARGV[1])
if not redis.call('HGET', slot, 'created') then
  fail('GONE', slot)
end
if #ARGV < 2 or #ARGV > 61 then
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
  local past = string.format('%.0f', now + boundaries[i] + 1) -- a due time has a fraction: the whole ms counts
  reply[i] = redis.call('ZCOUNT', store, from, '(' .. past)
  from = past
end
reply[#reply + 1] = redis.call('ZCOUNT', store, from, '+inf')
reply[#reply + 1] = redis.call('ZCOUNT', store, '-inf', '(' .. PRIORITY_END)
return reply
