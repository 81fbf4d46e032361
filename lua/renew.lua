--[[
renew: renew claims, counted from now. Each claim has its own key.

ARGV[1]   hold_ms              1 to 86 400 000
ARGV[2..] the owner of each claim; n owners, at most 1000
Returns   a letter for each: 1 renewed, 0 the owner is not consuming it
Cost      O(n)
Atomic    All claims are read before the first write, and no write needs memory. A second run does
          the same.
]]
--- @keys claim ...
--- @include "lib/check"
--- @include "lib/claims"
local hold = whole_number(ARGV[1], 1, HOLD_MOST_MS, 'hold_ms')
local n = count_claims(2, 1)
local values, letters = read_claims(), {}
for i = 1, n do
  letters[i] = is_consuming(values[i], ARGV[1 + i], i) and '1' or '0'
end
for i = 1, n do
  if letters[i] == '1' then
    redis.call('PEXPIRE', all_keys[i], hold)
  end
end
return table.concat(letters)
