--[[
stage_push: put an entry at the end of a stage, where nobody sees it before publish moves it.

KEYS[1]   slot           hash  looked at: the topic is there
KEYS[2]   stage          list  entries, each of which publish moves in one step
ARGV[1]   position             how many entries its writer has put there before
ARGV[2]   keep_ms              how long the stage is kept from now on
ARGV[3]   entry                msgpack, a list of texts: n ids (1 to 1000), then n times head and rest, as send takes
                               them; or 'm' and the arguments 4 to 11 of merge
Returns   the number of entries after it
Cost      O(1), and the size of the entry
Atomic    A stage has one writer. What it has put there already is not put there again; a stage that is shorter
          or longer than its writer says is an error, and nothing is written.
]]
--- @include "lib/check"
local slot, stage = KEYS[1], KEYS[2]
local position = whole(ARGV[1], 0, 9e15, 'position')
local keep = whole(ARGV[2], 1000, 31622400000, 'keep_ms')
if not ARGV[3] or ARGV[3] == '' then
  fail('ARG', 'entry')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local length = redis.call('LLEN', stage)
if length == position + 1 then
  return length -- a copy of this command came before
end
if length ~= position then
  fail('STAGE', stage)
end
redis.call('RPUSH', stage, ARGV[3])
redis.call('PEXPIRE', stage, keep)
return length + 1
