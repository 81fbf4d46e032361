--[[
unclaim: remove claims whose work was not done. Each claim has its own key.

ARGV[1..] the owner of each claim; n owners, at most 1000
Returns   a letter for each: 1 removed, 0 the owner was not consuming it
Cost      O(n)
Atomic    All claims are read before the first write, and no write needs memory. A consumed claim
          stays. A second run removes nothing and answers 0.
]]
--- @keys claim ...
--- @include "lib/claims"
local n = count_claims(1, 1)
local values, letters = read_claims(), {}
for i = 1, n do
  letters[i] = is_consuming(values[i], ARGV[i], i) and '1' or '0'
end
for i = 1, n do
  if letters[i] == '1' then
    redis.call('DEL', all_keys[i])
  end
end
return table.concat(letters)
