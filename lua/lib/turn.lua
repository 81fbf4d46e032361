-- settled: the ids that this slot has done with, remembered for at least the topic's dedup window.
-- Two sets take turns: one is filled for a window while the other ages, then the older is dropped
-- whole. So an id is remembered for one to two windows, and forgetting costs nothing by id.
-- A clock that steps back does not turn them back.
local function settled_turn(window, now, turn_seen)
  return math.max(math.floor(now / window), turn_seen or 0)
end
