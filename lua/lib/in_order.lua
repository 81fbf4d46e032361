-- in_order: giving deliveries back to a slot in order. Each takes its old place again: in front of all that
-- waits in its priority, and among those of its batch by delivery number, so that it does not matter which of
-- them comes back first. One without a priority stands in front of all that is due. No message waits for its retry;
-- the slot does, until `hold`.
--
-- Front places of a batch are counted back from `front`; `span` is how many of them are used, and the next
-- take moves `front` past them. Both are shared with `release` in a slot that is not in order.
--
-- Deliveries from before the slot was in order (`mixed`) may be more than the 2048 that receipts tell apart. Those
-- of a priority go by the acceptance number in the record instead.
local function places_of(slot, ordered)
  local s = redis.call('HMGET', slot, 'front', 'delivered', 'span', 'mixed', 'accepted')
  return {
    front = tonumber(s[1] or 0), delivered = tonumber(s[2] or 0), span = tonumber(s[3] or 0),
    hold = tonumber(ordered) or 1, mixed = s[4], accepted = tonumber(s[5] or 0),
  }
end

-- old_place: the score for a delivery with this receipt; `home` is the priority of its message, or when it was due.
-- The record is needed where places are mixed.
local function old_place(places, home, receipt, record)
  local behind = (places.delivered - receipt % 1 * 2048) % 2048
  if places.mixed and home < PRIORITY_END and record and #record >= 8 then
    behind = (places.accepted - struct.unpack('>I4', record, 5)) % 4294967296
  end
  places.span = math.max(places.span, behind + 1)
  return front_score(home, places.front - behind)
end

local function hold_for(places, id, wait_until)
  if wait_until > places.hold then
    places.hold, places.holder = wait_until, id
  end
end

local function keep_places(slot, places)
  redis.call('HSET', slot, 'span', places.span, 'ordered', places.hold)
  if places.holder then
    redis.call('HSET', slot, 'holder', places.holder)
  end
end
