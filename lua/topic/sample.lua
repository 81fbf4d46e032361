--[[
sample: keep figures of a topic for one moment.

ARGV[1]   created              the topic's stamp
ARGV[2]   keep_ms              1000 to 10 000 000 000: the history expires so long after the last sample
ARGV[3..] pairs of place, figures; at most 10
Returns   1 kept, 0 the topic is missing, is being deleted, or has another stamp
Cost      O(pairs)
Atomic    A place is written as a whole: of two servers that sample the same moment, the later one's figures stand.
          A second run writes the same.
]]
--- @keys topic history
--- @include "lib/check"
--- @include "lib/topic"
local keep = whole_number(ARGV[2], 1000, HISTORY_KEPT_MOST_MS, 'keep_ms')
if #ARGV < 4 or #ARGV > 22 or #ARGV % 2 == 1 then
  fail('ARG', 'count')
end
redis.call('HLEN', history)
if not is_open(ARGV[1]) then
  return 0
end
redis.call('HSET', history, unpack(ARGV, 3))
redis.call('PEXPIRE', history, keep)
return 1
