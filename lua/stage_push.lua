--[[
stage_push: put an entry at the end of a stage, where no consumer sees it before publish moves it.
The slot is only checked to exist. An entry is one or more elements; publish moves an entry in one
step.

ARGV[1]   position             how many elements the writer of the stage has put there before
ARGV[2]   keep_ms              how long the stage is kept from now on
ARGV[3..] entry                its elements. The first one is a msgpack list, of one of these kinds:
                               n members (1 to 1000), then n times head and rest, as send takes them
                               'm' and the arguments 5 to 12 of merge
                               'p', a head without times, a member and n. Then n elements follow,
                               each the rest of a message. Their members are this member and those
                               with the next n - 1 stamps
Returns   the number of elements after it
Cost      O(n), n = elements of the entry, at most 1001, and their size
Atomic    A stage has one writer. An entry that the writer has put there already is not put there
          again. If the stage is shorter or longer than its writer says, that is an error, and
          nothing is written.
]]
--- @keys slot stage
--- @include "lib/check"
local ELEMENTS_MOST = 1001 -- of an entry
local position = whole_number(ARGV[1], 0, NUMBER_MOST, 'position')
local keep = whole_number(ARGV[2], 1000, STAGE_KEPT_MOST_MS, 'keep_ms')
if not ARGV[3] or ARGV[3] == '' or #ARGV > ELEMENTS_MOST + 2 then
  fail('ARG', 'entry')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local length = redis.call('LLEN', stage)
local after = position + #ARGV - 2
if length == after then
  return length -- a copy of this command came before
end
if length ~= position then
  fail('STAGE', stage)
end
redis.call('RPUSH', stage, unpack(ARGV, 3))
redis.call('PEXPIRE', stage, keep)
return after
