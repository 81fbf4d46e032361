--[[
settle_held: remove deliveries for good, for ack and query_settle.

Reads:     KEYS: 1 to 6 as ack has them
           slot, prepare: keys
           now, held_ids: a list of one id at least, all held by the caller
           large, bodies: how many large bodies the slot has, or false; and their key
           failed: how many messages of the slot have failed
           low, high: a range of receipts that has these and no others, or nil
           kept: those that are remembered as settled; nil where there are none
           window, last_turn: the dedup window, and its turn as the slot has noted it
           blocked, channel, index: for waking consumers of a slot in order
Writes:    nothing
Declares:  removed: how many were settled, which the caller counts in the slot
Returns for the caller: no
]]
--- @include "lib/settled"
-- Removing the records also notices a wrong type there, before anything else is removed.
if large then
  --- @include "lib/large_bodies"
  drop_records(slot, KEYS[3], bodies, held_ids)
else
  redis.call('HDEL', KEYS[3], unpack(held_ids))
end
local removed
if high then
  removed = redis.call('ZREMRANGEBYSCORE', prepare, low, high)
else
  removed = redis.call('ZREM', prepare, unpack(held_ids))
end
if failed > 0 then
  redis.call('HDEL', KEYS[4], unpack(held_ids))
end
if kept then
  remember_settled(slot, KEYS[5], KEYS[6], window, last_turn, now, kept)
end
if blocked then
  --- @include "lib/in_order"
  --- @include "lib/wake"
  if unblock(slot, prepare, blocked, now) then
    wake(slot, channel, index)
  end
end
