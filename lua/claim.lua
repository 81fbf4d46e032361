--[[
claim: take claims before their work begins, each for an owner. Each claim has its own key.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   hold_ms              1 to 86 400 000: how long a claim lasts without renewal
ARGV[3..] the owner of each claim, text without spaces; n owners, at most 1000
Returns   {a letter for each claim, and for every b in their order: ms since it was claimed, ms it
          has left}. f first: the owner has it. d done: it is consumed. b busy: another owner has
          it. If a claim is given twice, the first owner takes it.
Cost      O(n)
Atomic    All claims are read before the first write, which needs no memory. If the owner already
          has a claim, it is renewed, so a copy of this command gives the same answer. A copy that
          arrives after the owner has removed the claim takes it again, for at most hold_ms.
]]
--- @keys claim ...
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/claims"
local now = clock(ARGV[1])
local hold = whole_number(ARGV[2], 1, HOLD_MOST_MS, 'hold_ms')
local n = count_claims(3, 1)
local values = read_claims()
local letters, answer, held, missing, taken = {}, { '' }, {}, {}, {}
for i = 1, n do
  local key, owner = all_keys[i], ARGV[2 + i]
  local state, holder, since = nil, taken[key], now
  if values[i] then
    state, holder, since = parse_claim(values[i], i)
  elseif not holder then
    missing[#missing + 1] = i
    taken[key], holder = owner, owner
  end
  if state == 'consumed' then
    letters[i] = 'd'
  elseif holder == owner then
    letters[i] = 'f'
    if state then
      held[#held + 1] = key
    end
  else
    local left = state and redis.call('PTTL', key) or hold
    letters[i] = 'b'
    answer[#answer + 1] = math.max(0, now - since)
    answer[#answer + 1] = left < 0 and hold or left -- somebody removed its ttl: PERSIST
  end
end
for a = 1, #held do
  redis.call('PEXPIRE', held[a], hold)
end
if #missing > 0 then
  -- The key is missing, so this is a write that needs no memory; see lib/writes.
  redis.call('PEXPIRE', all_keys[missing[1]], hold)
  local since = string.format(' %d', now)
  for f = 1, #missing do
    local i = missing[f]
    redis.call('SET', all_keys[i], 'consuming ' .. ARGV[2 + i] .. since, 'PX', hold)
  end
end
answer[1] = table.concat(letters)
return answer
