--[[
member_ends: forget ends of members of batches that were reported, and return the next ends. Scripts
that end a member leave its end in the slot (lib/results/note_outcomes) for the batch, which may be
on another server.

The ids of members that were cancelled, dropped or purged, or have expired, are not remembered as
settled. Their ends stay for a minute after the report, so that `send` does not store them again.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                most ends to return, 0 to 500
ARGV[3..] for each end that was reported: its name and its value, as an earlier reply had them
Returns   for each end, its name, and its value: the letter of the outcome, and
          `<topic> <slot> <name> <id>` (lib/results/keep_mark)
Cost      O(n log R), R = results of the slot
Atomic    An end is forgotten only if its value is still the same: a message can end again after a
          redrive. Works while Redis is at maxmemory. A second run forgets nothing.
]]
--- @keys slot results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/results/results"
--- @include "lib/writes"
local END_MOST = 500
local KEPT_MS = 60000 -- of an end, after its report
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 0, END_MOST, 'limit')
if #ARGV % 2 > 0 or #ARGV > 2 + 2 * END_MOST then
  fail('ARG', 'reported')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
if #ARGV > 2 then
  forget_results(now, 2 * END_MOST)
  allow_oom(keeping)
end
for i = 3, #ARGV, 2 do
  local is_same = redis.call('HGET', results, ARGV[i]) == ARGV[i + 1]
  if is_same and string.find(ARGV[i + 1], '^[cepo]') then
    redis.call('ZADD', keeping, string.format('%.0f', now + KEPT_MS), ARGV[i])
  elseif is_same then
    redis.call('ZREM', keeping, ARGV[i])
    redis.call('HDEL', results, ARGV[i])
  end
end
local reply, names = {}, redis.call('ZRANGEBYSCORE', keeping, '+inf', '+inf', 'LIMIT', 0, limit)
for i = 1, #names do
  reply[2 * i - 1], reply[2 * i] = names[i], redis.call('HGET', results, names[i]) or ''
end
return reply
