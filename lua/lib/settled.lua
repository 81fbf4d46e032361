-- settled: the ids that this slot has done with, remembered for at least the topic's dedup window.
-- Two sets take turns: one is filled for a window while the other ages, then the older is dropped
-- whole. So an id is remembered for one to two windows, and forgetting costs nothing by id.
-- A clock that steps back does not turn them back.
local function settled_turn(window, now, turn_seen)
  return math.max(math.floor(now / window), turn_seen or 0)
end

-- known: for each of the ids ARGV[from..to], whether it was settled inside the window.
local function settled_known(even, odd, window, turn_seen, now, from, to)
  local turn = settled_turn(window, now, turn_seen)
  if turn_seen == nil or turn - turn_seen >= 2 then
    return nil -- both sets are older than the window, or never were
  end
  local young, old = even, odd
  if turn % 2 == 1 then
    young, old = odd, even
  end
  -- The older set still counts in the turn after its own; the other one only in its own turn.
  local known = redis.call('SCARD', old) > 0 and redis.call('SMISMEMBER', old, unpack(ARGV, from, to))
  if turn == turn_seen then
    local more = redis.call('SMISMEMBER', young, unpack(ARGV, from, to))
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

-- check: notices a wrong type before the first write.
local function settled_check(even, odd, window, turn_seen, now)
  local turn = settled_turn(window, now, turn_seen)
  redis.call('SCARD', turn % 2 == 1 and odd or even)
  if turn ~= turn_seen then
    redis.call('SCARD', turn % 2 == 1 and even or odd)
  end
end

-- remember: notes ids (a list) as settled. Call it after a write that frees memory, see lib/drain.
local function settled_remember(slot, even, odd, window, turn_seen, now, ids)
  local turn = settled_turn(window, now, turn_seen)
  local young, old = even, odd
  if turn % 2 == 1 then
    young, old = odd, even
  end
  if turn_seen ~= turn then
    redis.call('UNLINK', young)
    if turn_seen == nil or turn - turn_seen ~= 1 then
      redis.call('UNLINK', old)
    end
    redis.call('HSET', slot, 'settled_turn', turn)
    redis.call('SADD', young, unpack(ids))
    redis.call('PEXPIRE', young, window * 2)
  else
    redis.call('SADD', young, unpack(ids))
  end
end
