--[[
Slots in order: their hash has the field `ordered`. The section "Slots in order" of lua/README.md
describes them.

A delivery that is given back takes its old place: before all waiting messages of its priority, or
before all due messages if it has no priority. Deliveries of one batch are ordered there by delivery
number, whichever came back first. No message waits for its retry. Instead, the whole slot waits.

Front places of a batch are counted back from `front`. `span` is the number of places that are used,
and the next take moves `front` past them. `release` also uses both in a slot that is not in order.

Deliveries from before the slot was in order (`mixed`) may be more than the 2048 that receipts can
distinguish. Then messages with a priority go by the acceptance number in the record.
]]
--- @needs slot store prepare records
--- @include "lib/leases/receipt"
--- @include "lib/records/place_in_record"
--- @include "lib/scores/score"

-- Return the time, epoch ms, before which the slot gives no messages. Return 1 if the slot does not
-- wait, nil if it is not in order. The wait ends early if the message that failed or was snoozed is
-- cancelled or purged: the field `holder` names this message. `ordered`: the field of the slot.
--- @inline
local function end_of_wait(ordered, now)
  local ends = ordered and tonumber(ordered) or nil
  if not ends or ends <= now then
    return ends
  end
  local holder = redis.call('HGET', slot, 'holder') or ''
  return redis.call('ZSCORE', store, holder) and ends or 1
end

-- Read the counters from which the scores of old places are computed.
local function read_places(ordered)
  local front, delivered, span, mixed, accepted, timed_priority = unpack(redis.call('HMGET', slot,
    'front', 'delivered', 'span', 'mixed', 'accepted', 'timed_priority'))
  return {
    front = tonumber(front or 0), delivered = tonumber(delivered or 0), span = tonumber(span or 0),
    ordered_until = tonumber(ordered) or 1, mixed = mixed, accepted = tonumber(accepted or 0),
    timed_priority = tonumber(timed_priority),
  }
end

-- Return the score of the old place of a delivery. `place`: the priority of its message, or when
-- the message was due. The record is needed only if the slot is `mixed`.
local function old_score(places, place, receipt, record)
  place = place >= PRIORITY_END and places.timed_priority or place
  local behind = (places.delivered - receipt % 1 * DELIVERY_CYCLE) % DELIVERY_CYCLE
  if places.mixed and place < PRIORITY_END and record and #record >= FIXED then
    behind = (places.accepted - struct.unpack('>I4', record, 5)) % ACCEPTED_CYCLE
  end
  places.span = math.max(places.span, behind + 1)
  return front_score(place, places.front - behind)
end

-- Let the slot wait for a message until `wait_until`, unless it already waits longer.
local function wait_for(places, id, wait_until)
  if wait_until > places.ordered_until then
    places.ordered_until, places.holder = wait_until, id
  end
end

-- Return the score of the old place of a failed delivery, and let the slot wait until `wait_until`
-- for the retry. Return nil if the record does not say the place.
local function retry_score(places, id, receipt, wait_until)
  local record = redis.call('HGET', records, id)
  local place = place_in_record(record)
  if not place then
    return nil
  end
  wait_for(places, id, wait_until)
  return old_score(places, place, receipt, record)
end

-- Write the counters of the slot, and until when it waits.
local function write_places(places)
  redis.call('HSET', slot, 'span', places.span, 'ordered', places.ordered_until)
  if places.holder then
    redis.call('HSET', slot, 'holder', places.holder)
  end
end

-- Return whether the caller must wake consumers that wait until others settle. In a slot in order,
-- they wait until nothing is in flight; in another slot, for room within its limit. `blocked`: the
-- field of the slot, until when these consumers may be asleep. It is removed if they must be woken.
local function unblock(blocked, now)
  if not blocked or tonumber(blocked) <= now then
    return false
  end
  if redis.call('ZCARD', prepare) > 0 and redis.call('HEXISTS', slot, 'ordered') == 1 then
    return false
  end
  redis.call('HDEL', slot, 'blocked')
  return true
end
