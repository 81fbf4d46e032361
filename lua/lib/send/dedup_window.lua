--[[
Ids of settled messages, remembered for at least the topic's dedup window.

Two sets take turns. One set is filled for a window while the other ages; then the older set is
dropped as a whole. So an id is remembered for one to two windows, and forgetting has no cost for
each id. The sets do not expire: Redis frees an expired key in its main thread, which takes 100 to
300 ms for 600 000 ids. UNLINK in a script frees it in another thread. The next write to the slot
calls it, or tidy does.

If the clock steps back, the turns do not. If the clock was more than one window ahead, the turns
follow it again: the set that is being filled becomes the set of the next turn with the same parity.
So no id is forgotten early, and its ids are remembered for at most three windows.

Only ids that their sender keeps, to send them again, are remembered: ids derived from a dedup key
(first bit set), and ids made to be kept (second bit set, see rmq/kernel/core/ids.py). Any other id
is in one send only, which lib/replay recognizes.
]]
--- @needs slot settled0 settled1
--- @include "lib/member"

-- Return the ids that may be sent again; nil if there are none.
local function resendable_ids(ids)
  local resendable
  for i = 1, #ids do
    if string.byte(ids[i], 1) >= KEPT then
      resendable = resendable or {}
      resendable[#resendable + 1] = ids[i]
    end
  end
  return resendable
end

-- Return whether the id of a cancelled message stays settled. Its sender made the id to send it
-- again. A dedup key may be used again instead.
local function stays_settled(id)
  local first_byte = string.byte(id, 1)
  return first_byte >= KEPT and first_byte < DERIVED
end

-- Return the number of the turn. `last_turn`: the field of the slot, or nil. Examples, if by the
-- clock the turn is 10:
--   last_turn 9   -> 10
--   last_turn 11  -> 11: the clock stepped back, and the turn does not
--   last_turn 20  -> 10, and last_turn 21 -> 11: the clock was more than one window ahead. The turn
--     follows the clock again, and keeps the parity of last_turn: the same set is being filled
--- @inline
local function turn_of(window, now, last_turn)
  local turn = math.floor(now / window)
  if last_turn and last_turn > turn + 1 then
    turn = turn + (last_turn + turn) % 2
  else
    turn = math.max(turn, last_turn or 0)
  end
  return turn
end

-- Return the sets whose ids are all past the window; nil if there are none.
local function forgotten_sets(window, last_turn, now)
  local passed = window > 0 and math.floor(now / window) - last_turn or 2
  if passed >= 2 then
    return { settled0, settled1 }
  elseif passed == 1 then
    return { last_turn % 2 == 1 and settled0 or settled1 }
  end
end

-- Return a list with 1 for each id of given[from..to] that was settled inside the window, else 0;
-- nil if no id was settled.
--- @inline
local function find_settled(window, last_turn, now, given, from, to)
  local turn = turn_of(window, now, last_turn)
  if last_turn == nil or turn - last_turn >= 2 then
    return nil -- both sets are older than the window, or do not exist
  end
  local young, old = settled0, settled1
  if turn % 2 == 1 then
    young, old = settled1, settled0
  end
  -- The older set still counts in the turn after its own turn, the newer set only in its own turn.
  local settled = redis.call('SCARD', old) > 0
    and redis.call('SMISMEMBER', old, unpack(given, from, to))
  if turn <= last_turn then
    local more = redis.call('SMISMEMBER', young, unpack(given, from, to))
    if not settled then
      return more
    end
    for i = 1, #settled do
      if more[i] == 1 then
        settled[i] = 1
      end
    end
  end
  return settled
end

-- Stop the script if a set has a wrong type. Call it before the first write.
local function check_settled_sets(window, last_turn, now)
  local turn = turn_of(window, now, last_turn)
  redis.call('SCARD', turn % 2 == 1 and settled1 or settled0)
  if turn ~= last_turn then
    redis.call('SCARD', turn % 2 == 1 and settled0 or settled1)
  end
end

-- Note ids as settled. Call it after a write that frees memory or needs none.
local function remember_settled(window, last_turn, now, ids)
  local turn = turn_of(window, now, last_turn)
  local young, old = settled0, settled1
  if turn % 2 == 1 then
    young, old = settled1, settled0
  end
  if last_turn ~= turn then
    if last_turn == nil or turn > last_turn then
      redis.call('UNLINK', young)
      if last_turn == nil or turn - last_turn > 1 then
        redis.call('UNLINK', old)
      end
    end
    redis.call('HSET', slot, 'settled_turn', turn)
  end
  redis.call('SADD', young, unpack(ids))
end
