--[[
The counters that order the messages of a slot: `order` grows with each arrival, `front` falls with
each message that is given back. A large counter restarts if no message with a score from it is
left.
]]
--- @needs store
--- @include "lib/scores/score_ranges"
local RESTART = 1073741824 -- a quarter of ORDER_END

-- Return the counter of arrivals to continue from. It restarts if no priority message waits.
-- Messages that are due later do not count: with them, it might never restart.
--- @inline
local function restarted_order(order)
  if order > RESTART and redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END) == 0 then
    return 0
  end
  return order
end

-- Return the counter of messages given back to continue from. Timed messages and retries are also
-- given back, so it restarts only if none of them waits.
--- @inline
local function restarted_front(front)
  if front < -RESTART and redis.call('ZCOUNT', store, '-inf', '(' .. TIMED_MIN) == 0 then
    return 0
  end
  return front
end
