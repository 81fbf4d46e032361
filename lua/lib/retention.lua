-- drop_old_dead: drops up to `limit` dead letters that died at `before` or earlier, and counts them; how many. The
-- first write frees memory. `audit`: the key, where the slot is audited.
local function drop_old_dead(slot, dead, records, failures, audit, before, now, limit)
  local old = redis.call('ZRANGEBYSCORE', dead, '-inf', before, 'LIMIT', 0, limit)
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
  return #old
end
