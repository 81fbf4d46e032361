--[[
claim: take claims, each for an owner, before the work that they stand for begins.

KEYS[1..] claim          str   of each: `consuming <owner> <since, epoch ms>` or `consumed <owner> <at, epoch ms>`
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   hold_ms              1 to 86 400 000: how long it is held if nobody renews it
ARGV[3..] the owner of each, text without spaces; n of them, at most 1000
Returns   {a letter for each, and for every b in their order: ms since it was claimed, ms it has left}:
          f first, it is the owner's; d done, it is consumed; b busy, another owner's. Of a name that is there
          twice, the first one takes it.
Cost      O(n)
Atomic    All are read before the first write, which needs no memory. A claim that is its owner's already
          is held anew, so a copy of this command gives the same answer. A copy that comes after its owner
          has let go takes the claim again, for hold_ms at most.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/claimed"
local now = clock(ARGV[1])
local hold = whole(ARGV[2], 1, 86400000, 'hold_ms')
local n = owners(3, 1)
local values = standing()
local letters, answer, again, fresh, taken = {}, { '' }, {}, {}, {}
for i = 1, n do
  local key, owner = KEYS[i], ARGV[2 + i]
  local state, holder, since = nil, taken[key], now
  if values[i] then
    state, holder, since = claimed(values[i], i)
  elseif not holder then
    fresh[#fresh + 1] = i
    taken[key], holder = owner, owner
  end
  if state == 'consumed' then
    letters[i] = 'd'
  elseif holder == owner then
    letters[i] = 'f'
    if state then
      again[#again + 1] = key
    end
  else
    local left = state and redis.call('PTTL', key) or hold
    letters[i] = 'b'
    answer[#answer + 1] = math.max(0, now - since)
    answer[#answer + 1] = left < 0 and hold or left -- a person took its life away: PERSIST
  end
end
for a = 1, #again do
  redis.call('PEXPIRE', again[a], hold)
end
if #fresh > 0 then
  redis.call('PEXPIRE', KEYS[fresh[1]], hold) -- it is absent; a write that needs no memory, see lib/drain
  local since = string.format(' %d', now)
  for f = 1, #fresh do
    local i = fresh[f]
    redis.call('SET', KEYS[i], 'consuming ' .. ARGV[2 + i] .. since, 'PX', hold)
  end
end
answer[1] = table.concat(letters)
return answer
