--[[
finish: mark claims as consumed, by those who hold them.

KEYS[1..] claim          str   of each: `consuming <owner> <since, epoch ms>` or `consumed <owner> <at, epoch ms>`
ARGV[1]   now_us         ''    or a test's time
ARGV[2..] the owner of each; n of them, at most 1000. Then for each how long it is remembered: ttl_ms, 1 to
          315 619 200 000 (ten years)
Returns   a letter for each: 1 consumed by that owner, now or before; 0 anything else, absent included
Cost      O(n)
Atomic    All are read before the first write, which needs no memory. What is not its owner's is left as it
          is. Run twice, it gives the same answer, and the time and the life of the first one stay.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/claimed"
local now = clock(ARGV[1])
local n = owners(2, 2)
local values, letters, lives, ending = standing(), {}, {}, {}
for i = 1, n do
  local owner = ARGV[1 + i]
  lives[i] = whole(ARGV[1 + n + i], 1, 315619200000, 'ttl_ms')
  if consumes(values[i], owner, i) then
    letters[i] = '1'
    ending[#ending + 1] = i
  else
    letters[i] = values[i] and select(2, claimed(values[i], i)) == owner and '1' or '0'
  end
end
if #ending > 0 then
  redis.call('PEXPIRE', KEYS[ending[1]], lives[ending[1]]) -- needs no memory, see lib/drain
  local at = string.format(' %d', now)
  for e = 1, #ending do
    local i = ending[e]
    redis.call('SET', KEYS[i], 'consumed ' .. ARGV[1 + i] .. at, 'PX', lives[i])
  end
end
return table.concat(letters)
