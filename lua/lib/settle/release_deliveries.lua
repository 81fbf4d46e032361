-- Giving deliveries back that were not worked on, for release and lease_release.
--- @needs slot store prepare records failures
--- @include "lib/settle/given_back"
--- @include "lib/take/in_order"
--- @include "lib/scores/score"
--- @include "lib/scores/timed_score"

-- Move deliveries to the front of their priority or of what is due, or where the wait puts them. It costs no retry. The first write
-- frees memory.
--   held_ids, receipts, places: the deliveries, one at least, in the order of delivery; receipts, places: numbers
--   wait: ms until they may be taken, 0 at once
--   max_retries, retry, front, ordered: fields of the slot
--- @inline
local function release_deliveries(held_ids, receipts, places, wait, max_retries, retry, front, ordered, now)
  -- Where retries wait, a message that failed is at its priority, and the failures hash knows the deliveries that it has left;
  -- where they do not, it is among the retries.
  local at_once, all_left, first = string.sub(retry, 1, 1) == '0', tonumber(max_retries) + 1, tonumber(front or 0) - #held_ids
  local add, timed_priority, in_order = {}, nil, ordered and read_places(ordered)
  for m = 1, #held_ids do
    local left, place, score = math.floor(receipts[m] % 1000) + 1, places[m], nil
    if in_order then
      local record = in_order.mixed and redis.call('HGET', records, held_ids[m])
      score = old_score(in_order, place, receipts[m], record)
      hold_for(in_order, held_ids[m], wait > 0 and now + wait or 0)
    elseif wait > 0 then
      score = next_timed_score(now + wait, 1)
    elseif left < all_left and (at_once or redis.call('HEXISTS', failures, held_ids[m]) == 0) then
      score = ordered_score(left, first + m)
    else
      if place >= PRIORITY_END then -- it had no priority of its own
        timed_priority = timed_priority or redis.call('HGET', slot, 'timed_priority') or place
        place = tonumber(timed_priority)
      end
      score = front_score(place, first + m)
    end
    add[2 * m - 1], add[2 * m] = score, held_ids[m]
  end
  local later = {}
  for m = 1, wait > 0 and #held_ids or 0 do
    later[held_ids[m]] = true
  end
  local leave, hold
  if redis.call('HEXISTS', slot, 'groups') == 1 then
    --- @include "lib/groups/group_stops"
    --- @include "lib/groups/leave_groups"
    leave, hold = leaving_groups, hold_given_back
  end
  local bring_up = leave and wait > 0 and leave(held_ids, nil, later)
  redis.call('ZREM', prepare, unpack(held_ids))
  redis.call('ZADD', store, unpack(add))
  if bring_up then
    bring_up()
  end
  if in_order then
    write_places(in_order)
  else
    redis.call('HSET', slot, 'front', first)
  end
  local any_paused = note_given_back()
  if any_paused then
    hold(held_ids)
  end
end
