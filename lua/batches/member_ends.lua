--[[
member_ends: forget ends of members of batches that were reported, and return the next ends. Scripts
that end a member leave its end in the slot (lib/results/note_outcomes) for the batch, which may be
on another server.

ARGV[1]   limit                most ends to return, 0 to 500
ARGV[2..] for each end that was reported: its name and its value, as an earlier reply had them
Returns   for each end, its name, and its value: the letter of the outcome, and
          `<topic> <slot> <name> <id>` (lib/results/keep_mark)
Cost      O(n log R), R = results of the slot
Atomic    An end is forgotten only if its value is still the same: a message can end again after a
          redrive. Works while Redis is at maxmemory. A second run forgets nothing.
]]
--- @keys slot results keeping
--- @include "lib/check"
local END_MOST = 500
local limit = whole_number(ARGV[1], 0, END_MOST, 'limit')
if #ARGV % 2 == 0 or #ARGV > 1 + 2 * END_MOST then
  fail('ARG', 'reported')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
for i = 2, #ARGV, 2 do
  if redis.call('HGET', results, ARGV[i]) == ARGV[i + 1] then
    redis.call('ZREM', keeping, ARGV[i])
    redis.call('HDEL', results, ARGV[i])
  end
end
local reply, names = {}, redis.call('ZRANGEBYSCORE', keeping, '+inf', '+inf', 'LIMIT', 0, limit)
for i = 1, #names do
  reply[2 * i - 1], reply[2 * i] = names[i], redis.call('HGET', results, names[i]) or ''
end
return reply
