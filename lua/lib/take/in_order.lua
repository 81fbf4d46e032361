--[[
Slots in order: those whose hash has the field `ordered`. lua/README.md describes that: "Slots in order".

A delivery that is given back takes its old place: in front of all that waits in its priority, or of all that is due if
it has no priority; deliveries of one batch stand there by delivery number, whichever came back first. No message waits
for its retry; the slot waits, until its hold.

Front places of a batch are counted back from `front`; `span` is how many of them are used, and the next take moves
`front` past them. Both are shared with release in a slot that is not in order.

Deliveries from before the slot was in order (`mixed`) may be more than the 2048 that receipts tell apart. Those with a
priority go by the acceptance number in the record instead.
]]
--- @needs slot store prepare records
--- @include "lib/leases/receipt"
--- @include "lib/records/record_bytes"
--- @include "lib/scores/score"

-- The time, epoch ms, before which the slot gives nothing; 1 where it does not wait; nil where it is not in order. A
-- hold counts while the message that failed or was snoozed is in the StoreQueue: when that message is cancelled or
-- purged, the slot does not wait for it.
local function hold_until(ordered, now)
  local hold = ordered and tonumber(ordered)
  if hold and hold > now and not redis.call('ZSCORE', store, redis.call('HGET', slot, 'holder') or '') then
    return 1
  end
  return hold or nil
end

-- The counters that places are made from.
local function read_places(ordered)
  local front, delivered, span, mixed, accepted, timed_priority = unpack(redis.call('HMGET', slot, 'front', 'delivered', 'span',
    'mixed', 'accepted', 'timed_priority'))
  return {
    front = tonumber(front or 0), delivered = tonumber(delivered or 0), span = tonumber(span or 0),
    hold = tonumber(ordered) or 1, mixed = mixed, accepted = tonumber(accepted or 0),
    timed_priority = tonumber(timed_priority or nil),
  }
end

-- The score of the old place of a delivery. `place`: the priority of its message, or when it was due. The record is
-- needed where places are mixed.
local function old_score(places, place, receipt, record)
  place = place >= PRIORITY_END and places.timed_priority or place
  local behind = (places.delivered - receipt % 1 * DELIVERY_CYCLE) % DELIVERY_CYCLE
  if places.mixed and place < PRIORITY_END and record and #record >= FIXED then
    behind = (places.accepted - struct.unpack('>I4', record, 5)) % ACCEPTED_CYCLE
  end
  places.span = math.max(places.span, behind + 1)
  return front_score(place, places.front - behind)
end

-- Hold the slot until then for this message, unless it is held for longer.
local function hold_for(places, id, wait_until)
  if wait_until > places.hold then
    places.hold, places.holder = wait_until, id
  end
end

-- The score of the old place of a delivery that failed; its retry holds the slot until then. nil where no readable
-- record says which place that was.
local function retry_score(places, id, receipt, wait_until)
  local record = redis.call('HGET', records, id)
  if not record or #record < FIXED then
    return nil
  end
  local place = priority_of(record)
  if place == 0 and #record >= 14 then
    place = read48(record, 9)
  end
  if place < PRIORITY_MIN or place >= PRIORITY_END and place < TIMED_MIN then
    return nil
  end
  hold_for(places, id, wait_until)
  return old_score(places, place, receipt, record)
end

-- Write the counters back, and the hold.
local function write_places(places)
  redis.call('HSET', slot, 'span', places.span, 'ordered', places.hold)
  if places.holder then
    redis.call('HSET', slot, 'holder', places.holder)
  end
end

-- Whether consumers that wait for others to settle must be woken: nothing is in flight any more, or the slot is not in
-- order, where they wait for room within its limit. `blocked` is the time until which they may be asleep; it is
-- cleared. Call wake next.
local function unblock(blocked, now)
  if blocked and tonumber(blocked) > now
      and (redis.call('ZCARD', prepare) == 0 or redis.call('HEXISTS', slot, 'ordered') == 0) then
    redis.call('HDEL', slot, 'blocked')
    return true
  end
  return false
end
