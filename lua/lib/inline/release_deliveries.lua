--[[
release_deliveries: move deliveries to the front of their priority or of what is due, or where the wait puts them, for
release and lease_release. It costs no retry.

Reads:     slot, store, prepare, failures, records: keys
           s: max_retries, front, waiting, retry, ordered and blocked, from place 2 on
           now
           wait: ms until they may be taken, 0 at once
           held_ids, receipts, places: the deliveries, one at least, in the order of delivery; receipts, places: numbers
           channel, index: for waking consumers
Writes:    nothing
Declares:  at_once, all_left, front, timed_priority, add, in_order
Returns for the caller: no
]]
--- @include "lib/score"
--- @include "lib/timed_score"
--- @include "lib/in_order"
--- @include "lib/given_back"
--- @include "lib/wake"
-- Where retries wait, a message that failed is at its priority, and the failures hash knows the deliveries that it has left;
-- where they do not, it is among the retries.
local at_once = string.sub(s[5], 1, 1) == '0'
local all_left, front, timed_priority = tonumber(s[2]) + 1, tonumber(s[3] or 0) - #held_ids, nil
local add, in_order = {}, s[6] and read_places(slot, s[6])
for m = 1, #held_ids do
  local left, place, score = math.floor(receipts[m] % 1000) + 1, places[m], nil
  if in_order then
    local record = in_order.mixed and redis.call('HGET', records, held_ids[m])
    score = old_score(in_order, place, receipts[m], record)
    hold_for(in_order, held_ids[m], wait > 0 and now + wait or 0)
  elseif wait > 0 then
    score = next_timed_score(store, now + wait, 1)
  elseif left < all_left and (at_once or redis.call('HEXISTS', failures, held_ids[m]) == 0) then
    score = ordered_score(left, front + m)
  else
    if place >= PRIORITY_END then -- it had no priority of its own
      timed_priority = timed_priority or redis.call('HGET', slot, 'timed_priority') or place
      place = tonumber(timed_priority)
    end
    score = front_score(place, front + m)
  end
  add[2 * m - 1], add[2 * m] = score, held_ids[m]
end
redis.call('ZREM', prepare, unpack(held_ids))
redis.call('ZADD', store, unpack(add))
if in_order then
  write_places(slot, in_order)
else
  redis.call('HSET', slot, 'front', front)
end
note_given_back(slot)
if unblock(slot, prepare, s[7], now) or wait > 0 and is_awaited(s[4], now) then
  wake(slot, channel, index)
elseif is_awaited(s[4], now) then
  --- @include "lib/hand_over"
  serve_sleepers(slot, store, prepare, records, failures, channel, index, now)
end
