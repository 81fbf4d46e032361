--[[
stage_keep: say how long a stage is kept from now on; 0: it goes now.

KEYS[1]   stage          list  entries that wait for publish
ARGV[1]   keep_ms              0 drops it
ARGV[2]   length         ''    or how many elements it must have
Returns   how many elements it has had
Cost      O(1)
Atomic    Yes. A stage of another length than it must have is an error, and nothing is changed.
]]
--- @include "lib/check"
local stage = KEYS[1]
local keep = whole(ARGV[1], 0, 31622400000, 'keep_ms')
local length = redis.call('LLEN', stage)
if ARGV[2] ~= '' and length ~= whole(ARGV[2], 0, 9e15, 'length') then
  fail('STAGE', stage)
end
if keep == 0 then
  redis.call('UNLINK', stage)
else
  redis.call('PEXPIRE', stage, keep)
end
return length
