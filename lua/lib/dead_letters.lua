--[[
Failure entries, and the DeadQueue.

The failures hash has an entry for each message that has failed, beside its record:

  byte 1   deliveries left; 0 when dead
  byte 2   deliveries made
  byte 3   reason: f failed, l lease expired, r rejected, u undecodable, x message expired, n no handler
  then     the consumer's error, which no script reads
]]
--- @include "lib/drop"
local function failure_entry(left, made, reason, details)
  return string.char(left, made) .. reason .. details
end

-- Drop up to `limit` dead letters that died at `before` or earlier, count them in the slot, and return how many. The
-- first write frees memory. `audit`: the key where the slot is audited, else nil.
local function drop_old_dead(slot, dead, records, bodies, failures, audit, before, now, limit)
  local ids = redis.call('ZRANGEBYSCORE', dead, '-inf', before, 'LIMIT', 0, limit)
  if #ids > 0 then
    redis.call('ZREM', dead, unpack(ids))
    drop_for_good(slot, records, bodies, failures, audit, 10, ids, now)
    redis.call('HINCRBY', slot, 'dead_dropped', #ids)
  end
  return #ids
end

-- Add a message to the DeadQueue, with the reason. Its record stays. Where the topic has a retention, a few dead letters
-- past it are dropped.
local function add_dead(slot, dead, records, bodies, failures, audit, id, now, made, reason, details, retention)
  redis.call('ZADD', dead, now, id)
  redis.call('HSET', failures, id, failure_entry(0, made, reason, details))
  redis.call('HINCRBY', slot, 'buried', 1)
  if retention > 0 then
    drop_old_dead(slot, dead, records, bodies, failures, audit, now - retention, now, 10)
  end
end
