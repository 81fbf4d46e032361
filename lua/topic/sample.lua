--[[
sample: store the figures of a topic for one moment in its history.

ARGV[1]   created              the topic's stamp
ARGV[2]   keep_ms              1000 to 10 000 000 000: how long the history is kept after this call
ARGV[3..] pairs of place in the history, figures; at most 10 pairs
Returns   1 stored, 0 the topic is missing, is being deleted, or has another stamp
Cost      O(pairs)
Atomic    The figures of a place are written as a whole. If two servers sample the same moment, the
          second call replaces the figures of the first call. A second run writes the same.
]]
--- @keys topic history
--- @include "lib/check"
--- @include "lib/topic"
local PAIRS_MOST = 10
local keep = whole_number(ARGV[2], 1000, HISTORY_KEPT_MOST_MS, 'keep_ms')
if #ARGV < 4 or #ARGV > 2 + 2 * PAIRS_MOST or #ARGV % 2 == 1 then
  fail('ARG', 'count')
end
-- A key of a wrong type stops the script here.
redis.call('HLEN', history)
if not is_open(ARGV[1]) then
  return 0
end
redis.call('HSET', history, unpack(ARGV, 3))
redis.call('PEXPIRE', history, keep)
return 1
