-- Deliveries that have gone back to the StoreQueue.
--- @needs slot
--- @include "lib/take/in_order"
--- @include "lib/wake/wake"

-- Note that messages may be leased a second time, after so many deliveries. Returns whether the slot has paused groups.
--- @inline
local function note_given_back()
  local delivered, paused = unpack(redis.call('HMGET', slot, 'delivered', 'groups_paused'))
  redis.call('HSET', slot, 'given_back', delivered or 0)
  return tonumber(paused or 0) > 0
end

-- Wake those who wait for what was given back, or hand it over to them. `blocked`, `waiting`: fields of the slot; `later`: all of
-- it goes later.
--- @inline
local function signal_given_back(blocked, waiting, later, channel, index, now)
  if unblock(blocked, now) or later and is_awaited(waiting, now) then
    wake(channel, index)
  elseif is_awaited(waiting, now) then
    --- @include "lib/wake/hand_over"
    serve_sleepers(channel, index, now)
  end
end
