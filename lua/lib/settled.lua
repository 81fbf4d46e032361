-- settled: writing the sets of settled ids that lib/known.lua reads.
--- @include "lib/turn"
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
    if turn_seen == nil or turn > turn_seen then
      redis.call('UNLINK', young)
      if turn_seen == nil or turn - turn_seen > 1 then
        redis.call('UNLINK', old)
      end
    end
    redis.call('HSET', slot, 'settled_turn', turn)
  end
  redis.call('SADD', young, unpack(ids))
end
