--[[
The counters that order the messages of a slot: `order` grows with each arrival, `front` falls with each message that is handed
back. They begin anew where they have gone far and no message is left to be ordered against.
]]
--- @needs store
--- @include "lib/scores/score_ranges"
local RESTART = 1073741824 -- a quarter of what the scores of the largest priorities can order

-- The counter of arrivals to go on from. Only priority messages count: one that is due in a month
-- would keep the counter from ever beginning anew.
--- @inline
local function restarted_order(order)
  if order > RESTART and redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END) == 0 then
    return 0
  end
  return order
end

-- The counter of messages handed back to go on from. Timed messages and retries are handed back
-- too, so they count.
--- @inline
local function restarted_front(front)
  if front < -RESTART and redis.call('ZCOUNT', store, '-inf', '(' .. TIMED_MIN) == 0 then
    return 0
  end
  return front
end
