-- The DeadQueue.
--- @include "lib/attempts"
--- @include "lib/drop"

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
-- past it are dropped. `entry`: its failure entry until now, false where there is none, nil where it was not read.
local function add_dead(slot, dead, records, bodies, failures, audit, id, now, made, reason, details, retention, entry)
  redis.call('ZADD', dead, now, id)
  note_failure(failures, id, 0, made, reason, details, now, entry)
  redis.call('HINCRBY', slot, 'dead_lettered', 1)
  if retention > 0 then
    drop_old_dead(slot, dead, records, bodies, failures, audit, now - retention, now, 10)
  end
end
