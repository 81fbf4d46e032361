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
local letters, lives, ending = {}, {}, {}
local n = owners(2, 2)
for i = 1, n do
  lives[i] = whole(ARGV[1 + n + i], 1, 315619200000, 'ttl_ms')
  local state, holder = claimed(i)
  letters[i] = holder == ARGV[1 + i] and '1' or '0'
  if letters[i] == '1' and state == 'consuming' then
    ending[#ending + 1] = i
  end
end
for e = 1, #ending do
  local i = ending[e]
  redis.call('PEXPIRE', KEYS[i], lives[i]) -- needs no memory, see lib/drain
  redis.call('SET', KEYS[i], string.format('consumed %s %d', ARGV[1 + i], now), 'PX', lives[i])
end
return table.concat(letters)
