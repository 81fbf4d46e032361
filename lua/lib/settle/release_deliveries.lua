-- Give deliveries back that were not worked on, for release, lease_release and query_release.
--- @needs slot store records failures
--- @include "lib/leases/remove_leases"
--- @include "lib/scores/score"
--- @include "lib/scores/timed_score"
--- @include "lib/settle/signal_given_back"
--- @include "lib/slot_fields"
--- @include "lib/take/in_order"
--- @include "lib/groups/given_back_functions"

-- Move deliveries to the front of their priority, or of the due messages if they have none, or
-- delay them. It uses up no retry. The first write frees memory.
--   released: a table of `ids`, at least one, in the order of delivery; `receipts`, as numbers; and
--     `places`: the priority of each message, or when it was due. With `are_suspended`, a slot in
--     order does not wait for them here: the next take decides (lib/events/stop_before_waiting)
--   fields: from read_return_fields
--   wait: ms until they may be received; 0: at once
--- @inline
local function release_deliveries(released, fields, wait, now)
  local ids, receipts, places = released.ids, released.receipts, released.places
  local in_order = fields[ORDERED] and read_places(fields[ORDERED])
  local max_retries, first = tonumber(fields[MAX_RETRIES]), tonumber(fields[FRONT] or 0) - #ids
  local retries_at_once = string.sub(fields[RETRY], 1, 1) == '0'
  local add, later, timed_priority = {}, {}, nil
  for m = 1, #ids do
    local deliveries_left = math.floor(receipts[m] % 1000) + 1
    local place, score = places[m], nil
    if in_order then
      local record = in_order.mixed and redis.call('HGET', records, ids[m])
      score = old_score(in_order, place, receipts[m], record)
      wait_for(in_order, ids[m], wait > 0 and not released.are_suspended and now + wait or 0)
    elseif wait > 0 then
      score = next_timed_score(now + wait, READ_RECORD)
    elseif deliveries_left <= max_retries
        and (retries_at_once or redis.call('HEXISTS', failures, ids[m]) == 0) then
      score = ordered_score(deliveries_left, first + m)
    else
      -- If retries wait for their time, a message that failed goes back to its priority: its
      -- failure entry says how many deliveries are left.
      if place >= PRIORITY_END then -- the message has no priority of its own
        timed_priority = timed_priority or redis.call('HGET', slot, 'timed_priority') or place
        place = tonumber(timed_priority)
      end
      score = front_score(place, first + m)
    end
    add[2 * m - 1], add[2 * m] = score, ids[m]
  end
  for m = 1, wait > 0 and #ids or 0 do
    later[ids[m]] = true
  end
  local leave, hold
  if fields[GROUPS] then
    leave, hold = given_back_functions()
  end
  local let_next_out = leave and wait > 0 and leave(ids, { later = later })
  remove_leases(ids, receipts)
  redis.call('ZADD', store, unpack(add))
  if let_next_out then
    let_next_out()
  end
  if in_order then
    write_places(in_order)
  else
    redis.call('HSET', slot, 'front', first)
  end
  if hold and tonumber(fields[GROUPS_PAUSED] or 0) > 0 then
    hold(ids)
  end
end
