--[[
stage_push: put an entry at the end of a stage, where nobody sees it before publish moves it.

KEYS[1]   slot           hash  looked at: the topic is there
KEYS[2]   stage          list  entries of several elements each
ARGV[1]   position             how many elements its writer has put there before
ARGV[2]   keep_ms              how long the stage is kept from now on
ARGV[3..] the entry: n (1 to 1000), n ids, n times head and rest, as send takes them; or 'm' and the arguments 4
          to 11 of merge
Returns   the number of elements after it
Cost      O(n)
Atomic    A stage has one writer. What it has put there already is not put there again; a stage that is shorter
          or longer than its writer says is an error, and nothing is written.
]]
--- @include "lib/check"
local slot, stage = KEYS[1], KEYS[2]
local position = whole(ARGV[1], 0, 9e15, 'position')
local keep = whole(ARGV[2], 1000, 31622400000, 'keep_ms')
local added = #ARGV - 2
local wanted = ARGV[3] == 'm' and 9 or 1 + 3 * whole(ARGV[3] or '', 1, 1000, 'count')
if added ~= wanted then
  fail('ARG', 'count')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local length = redis.call('LLEN', stage)
if length == position + added then
  return length -- a copy of this command came before
end
if length ~= position then
  fail('STAGE', stage)
end
redis.call('RPUSH', stage, unpack(ARGV, 3))
redis.call('PEXPIRE', stage, keep)
return length + added
