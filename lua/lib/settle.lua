-- settle: what ack and query_settle share: messages that are held leave for good. It stands in place, as lib/take does.
--
-- Expects KEYS 1 to 6 as ack has them, slot, prepare, now, mine (ids, one at least, all held), failed (how many
-- have failed in the slot), window and turn (of the dedup window), blocked, channel, index. Leaves gone: how many.
redis.call('HDEL', KEYS[3], unpack(mine)) -- also what notices a wrong type there, nothing yet removed
local gone = redis.call('ZREM', prepare, unpack(mine))
if failed > 0 then
  redis.call('HDEL', KEYS[4], unpack(mine))
end
redis.call('HINCRBY', slot, 'settled', gone)
if window > 0 then
  settled_remember(slot, KEYS[5], KEYS[6], window, turn, now, mine)
end
if blocked then
  --- @include "lib/wake"
  --- @include "lib/freed"
  if freed(slot, prepare, blocked, now) then
    wake(slot, channel, index)
  end
end
