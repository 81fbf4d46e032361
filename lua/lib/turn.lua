-- settled: the ids that this slot has done with, remembered for at least the topic's dedup window.
-- Two sets take turns: one is filled for a window while the other ages, then the older is dropped
-- whole. So an id is remembered for one to two windows, and forgetting costs nothing by id.
-- No set expires: Redis frees what expires in its main thread, 100 to 300 ms for 600 000 ids. UNLINK in a script frees
-- it beside the main thread; who comes next to the slot calls it (lib/settled), or an idle consumer or operator (tidy).
--
-- A clock that steps back does not turn them back. Where it was more than one window ahead, the turns follow it
-- again: the set that is being filled is that of the next turn with its parity, so that nothing is forgotten
-- early; what it holds is remembered for three windows at most.
local function settled_turn(window, now, turn_seen)
  local turn = math.floor(now / window)
  if turn_seen and turn_seen > turn + 1 then
    return turn + (turn_seen + turn) % 2
  end
  return math.max(turn, turn_seen or 0)
end
