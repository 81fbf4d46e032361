--- @include "lib/turn"
-- known: for each of the ids given[from..to], whether it was settled inside the window.
local function settled_known(even, odd, window, turn_seen, now, given, from, to)
  local turn = settled_turn(window, now, turn_seen)
  if turn_seen == nil or turn - turn_seen >= 2 then
    return nil -- both sets are older than the window, or never were
  end
  local young, old = even, odd
  if turn % 2 == 1 then
    young, old = odd, even
  end
  -- The older set still counts in the turn after its own; the other one only in its own turn.
  local known = redis.call('SCARD', old) > 0 and redis.call('SMISMEMBER', old, unpack(given, from, to))
  if turn <= turn_seen then
    local more = redis.call('SMISMEMBER', young, unpack(given, from, to))
    if not known then
      return more
    end
    for i = 1, #known do
      if more[i] == 1 then
        known[i] = 1
      end
    end
  end
  return known
end
