--[[
finish: change claims of their owners to consumed. Each claim has its own key.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] the owner of each claim; n owners, at most 1000. Then for each ttl_ms, how long it is
          remembered: 1 to 315 619 200 000 (ten years)
Returns   a letter for each: 1 consumed by this owner, now or before; 0 otherwise, also if the claim
          is missing
Cost      O(n)
Atomic    All claims are read before the first write, which needs no memory. A claim of another
          owner stays as it is. A second run gives the same answer, and keeps time and ttl of the
          first run.
]]
--- @keys claim ...
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/claims"
local now = clock(ARGV[1])
local n = count_claims(2, 2)
local values, letters, ttls, finished = read_claims(), {}, {}, {}
for i = 1, n do
  local owner = ARGV[1 + i]
  ttls[i] = whole_number(ARGV[1 + n + i], 1, CLAIM_KEPT_MOST_MS, 'ttl_ms')
  if is_consuming(values[i], owner, i) then
    letters[i] = '1'
    finished[#finished + 1] = i
  else
    letters[i] = values[i] and select(2, parse_claim(values[i], i)) == owner and '1' or '0'
  end
end
if #finished > 0 then
  redis.call('PEXPIRE', all_keys[finished[1]], ttls[finished[1]]) -- needs no memory, see lib/writes
  local at = string.format(' %d', now)
  for e = 1, #finished do
    local i = finished[e]
    redis.call('SET', all_keys[i], 'consumed ' .. ARGV[1 + i] .. at, 'PX', ttls[i])
  end
end
return table.concat(letters)
