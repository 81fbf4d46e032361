--[[
Ranges of the scores of the StoreQueue. Their Python twin is rmq/kernel/core/score.py.
lib/scores/score and lib/scores/timed_score make the scores.

  1 .. 16             a retry: deliveries left; the larger goes first
  17 .. 1 048 575     a priority message: its priority; the larger goes first
  1 048 576 .. 1e12   a due message without a priority that was given back; the smaller goes first
  >= 1e12             a timed message: when it is due, epoch ms; the earlier goes first
]]
local PRIORITY_MIN, PRIORITY_END, TIMED_MIN = 17, 1048576, 1000000000000
local GIVEN_BACK = 500000000000 -- the middle of the range of messages that were given back
local BELOW_PRIORITY_MIN, BELOW_PRIORITY_END = '(17', '(1048576' -- as the end of a range
-- How many arrivals, or messages given back, scores of the largest priorities can order.
local ORDER_END = 4294967296
