-- failure: what a message that has failed carries in the failures hash, beside its record.
--
--   byte 1   deliveries left; 0 when dead
--   byte 2   deliveries made
--   byte 3   reason: f failed, l lease ran out, r rejected, u undecodable, x expired
--   then     what the consumer told of its error, opaque here
local function failure(left, made, reason, told)
  return string.char(left, made) .. reason .. told
end

--- @include "lib/retention"
-- bury: to the DeadQueue, with the reason. The record stays. Where the topic asks for it, a few dead
-- letters past their retention are dropped. `audit`: the key, where the slot is audited.
local function bury(slot, dead, records, failures, audit, id, now, made, reason, told, retention)
  redis.call('ZADD', dead, now, id)
  redis.call('HSET', failures, id, failure(0, made, reason, told))
  redis.call('HINCRBY', slot, 'buried', 1)
  if retention > 0 then
    drop_old_dead(slot, dead, records, failures, audit, now - retention, now, 10)
  end
end
