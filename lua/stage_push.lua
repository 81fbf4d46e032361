--[[
stage_push: append an entry to a stage. No consumer sees it before publish moves it. The script only
checks that the slot exists. An entry is one or more elements; publish moves an entry in one step.

ARGV[1]   position             how many elements the writer of the stage has appended before
ARGV[2]   keep_ms              how long the stage is kept from now on
ARGV[3..] entry                its elements. The first element is a msgpack list of one of these
                               kinds:
                               - n members (1 to 1000), and n times head and rest, as send takes
                                 them
                               - 'm', and member, head, rest, body, merge key, mode, max_wait_ms and
                                 max_bytes of a message for merge
                               - 'p', a head without times, a member and n. Then n elements follow,
                                 each the rest of a message. The messages have the members of a run
                                 (lib/send/run_members)
Returns   the number of elements of the stage after the call
Cost      O(n), n = elements of the entry, at most 1001, and their size
Atomic    A stage has one writer. A repeated call appends nothing. If the stage is shorter or longer
          than its writer says, that is an error, and nothing is written.
]]
--- @keys slot stage
--- @include "lib/check"
local ELEMENTS_MOST = 1001 -- elements of an entry
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
  return length -- an earlier copy of this call has appended the entry
end
if length ~= position then
  fail('STAGE', stage)
end
redis.call('RPUSH', stage, unpack(ARGV, 3))
redis.call('PEXPIRE', stage, keep)
return after
