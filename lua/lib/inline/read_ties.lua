--[[
read_ties: read the priorities of a slot whose counters have gone beyond what a score can order, for take_messages.
Messages that came after that share the lowest score of their priority, and those handed back the highest. Read from
above, as all priorities are, equal scores come with the largest id first; here they come with the smallest, which is
the oldest where producers make the ids. Every turn of the loop takes one message at least.

Reads:     store, limit, n, batch
Writes:    batch: the ids
Declares:  TIES_PAGE, bound, room
Returns for the caller: no
]]
--- @include "lib/score_ranges"
local TIES_PAGE = 20
batch = {}
local bound, room = '(1048576', limit - n
while room > 0 do
  local page = redis.call('ZREVRANGEBYSCORE', store, bound, PRIORITY_MIN, 'WITHSCORES', 'LIMIT', 0, math.min(room, TIES_PAGE))
  if #page == 0 then
    break
  end
  for i = 1, #page, 2 do
    bound = '(' .. page[i + 1]
    local score = tonumber(page[i + 1])
    local integer = math.floor(score)
    local _, exponent = math.frexp(integer)
    if score == integer or score == integer + 1 - math.ldexp(1, exponent - 53) then
      local tied = redis.call('ZRANGEBYSCORE', store, page[i + 1], page[i + 1], 'LIMIT', 0, room)
      for t = 1, #tied do
        batch[#batch + 1] = tied[t]
      end
      break
    end
    batch[#batch + 1] = page[i]
    room = room - 1
  end
  room = limit - n - #batch
end
