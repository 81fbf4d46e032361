-- one_batch: part of take, for a slot in order, or a caller that asks for order. While something is in flight
-- there is nothing to take, nor before the hold: so one batch of the slot is out at a time, and whoever has it
-- owns the slot until the last of it is settled or its lease has run out.
--- @include "lib/hold"
hold = hold_of(slot, store, s[8], now) or 1
local in_flight = redis.call('ZCARD', prepare) > 0
if in_flight and ordered and not s[8] then
  -- Deliveries from before the slot was in order: what comes back of them goes to the front from now on.
  --- @include "lib/drain"
  drain(store)
  redis.call('HSET', slot, 'ordered', 1, 'mixed', 1)
end
if in_flight or hold > now then
  --- @include "lib/nothing"
end
if ordered and failed > redis.call('ZCARD', dead) then
  limit = 1 -- it may be one that kills its consumer: those behind it must not pay for that
end
