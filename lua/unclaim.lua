--[[
unclaim: let go of claims whose work was not done.

KEYS[1..] claim          str   of each: `consuming <owner> <since, epoch ms>` or `consumed <owner> <at, epoch ms>`
ARGV[1..] the owner of each; n of them, at most 1000
Returns   a letter for each: 1 removed, 0 it was not being consumed by that owner
Cost      O(n)
Atomic    All are read before the first write, and no write needs memory. What is consumed stays. Run twice,
          it removes nothing more, and says so.
]]
--- @include "lib/check"
--- @include "lib/claimed"
local n = owners(1, 1)
local values, letters = standing(), {}
for i = 1, n do
  letters[i] = consumes(values[i], ARGV[i], i) and '1' or '0'
end
for i = 1, n do
  if letters[i] == '1' then
    redis.call('DEL', KEYS[i])
  end
end
return table.concat(letters)
