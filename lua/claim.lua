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
local letters, answer, mine, fresh = {}, { '' }, {}, {}
for i = 1, owners(3, 1) do
  local key, owner = KEYS[i], ARGV[2 + i]
  local state, holder, since = claimed(i)
  if not state then
    fresh[key] = fresh[key] or owner
    holder, since = fresh[key], now
  end
  if state == 'consumed' then
    letters[i] = 'd'
  elseif holder == owner then
    letters[i] = 'f'
    mine[#mine + 1] = i
  else
    local left = state and redis.call('PTTL', key) or hold
    letters[i] = 'b'
    answer[#answer + 1] = math.max(0, now - since)
    answer[#answer + 1] = left < 0 and hold or left -- a person took its life away: PERSIST
  end
end
for m = 1, #mine do
  local i = mine[m]
  if redis.call('PEXPIRE', KEYS[i], hold) == 0 then -- absent; and this needs no memory, see lib/drain
    redis.call('SET', KEYS[i], string.format('consuming %s %d', ARGV[2 + i], now), 'PX', hold)
  end
end
answer[1] = table.concat(letters)
return answer
