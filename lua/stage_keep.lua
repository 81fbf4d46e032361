--[[
stage_keep: set how long a stage is kept from now on; 0 deletes it.

ARGV[1]   keep_ms              0 deletes it
ARGV[2]   length         ''    or how many elements it must have
Returns   how many elements it had
Cost      O(1)
Atomic    Yes. A stage of another length is an error, and nothing is changed.
]]
--- @keys stage
--- @include "lib/check"
local keep = whole_number(ARGV[1], 0, STAGE_KEPT_MOST_MS, 'keep_ms')
local length = redis.call('LLEN', stage)
if ARGV[2] ~= '' and length ~= whole_number(ARGV[2], 0, NUMBER_MOST, 'length') then
  fail('STAGE', stage)
end
if keep == 0 then
  redis.call('UNLINK', stage)
else
  redis.call('PEXPIRE', stage, keep)
end
return length
