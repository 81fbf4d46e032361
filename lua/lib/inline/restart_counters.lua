--[[
restart_counters: begin the counters of arrivals and of messages handed back anew, where they have gone far and no message
is left to be ordered against. For arrivals only priority messages count: one that is due in a month would keep the
counter from ever beginning anew. Timed messages and retries are handed back too, so they count for `front`.

Reads:     store, order, front
Writes:    order, front
Declares:  RESTART
Returns for the caller: no
]]
--- @include "lib/score_ranges"
local RESTART = 1073741824 -- a quarter of the arrivals that the largest priorities can order
if order > RESTART and redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END) == 0 then
  order = 0
end
if front < -RESTART and redis.call('ZCOUNT', store, '-inf', '(' .. TIMED_MIN) == 0 then
  front = 0
end
