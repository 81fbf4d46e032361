-- failure: what a message that has failed carries in the failures hash, beside its record.
--
--   byte 1   deliveries left; 0 when dead
--   byte 2   deliveries made
--   byte 3   reason: f failed, l lease ran out, r rejected, u undecodable, x expired
--   then     what the consumer told of its error, opaque here
local function failure(left, made, reason, told)
  return string.char(left, made) .. reason .. told
end

-- bury: to the DeadQueue, with the reason. The record stays. Where the topic asks for it, a few dead
-- letters past their retention are dropped, and counted. `audit`: the key, where the slot is audited.
local function bury(slot, dead, records, failures, audit, id, now, made, reason, told, retention)
  redis.call('ZADD', dead, now, id)
  redis.call('HSET', failures, id, failure(0, made, reason, told))
  redis.call('HINCRBY', slot, 'buried', 1)
  if retention > 0 then
    local old = redis.call('ZRANGEBYSCORE', dead, '-inf', now - retention, 'LIMIT', 0, 10)
    if #old > 0 then
      if audit then
        --- @include "lib/depart"
        depart(slot, audit, 'accounted', numbers_at(records, old, 10), now)
      end
      redis.call('ZREM', dead, unpack(old))
      redis.call('HDEL', records, unpack(old))
      redis.call('HDEL', failures, unpack(old))
      redis.call('HINCRBY', slot, 'dead_dropped', #old)
    end
  end
end
