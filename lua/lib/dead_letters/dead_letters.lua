-- The DeadQueue.
--- @needs slot dead failures
--- @include "lib/settle/attempts"
--- @include "lib/records/drop_for_good"

-- Drop up to `limit` dead letters that died at `before` or earlier, count them in the slot, and return how many. The
-- first write frees memory. `audited`: whether the slot is.
local function drop_old_dead(audited, before, now, limit)
  local ids = redis.call('ZRANGEBYSCORE', dead, '-inf', before, 'LIMIT', 0, limit)
  if #ids > 0 then
    redis.call('ZREM', dead, unpack(ids))
    drop_for_good(audited, 10, ids, now)
    redis.call('HINCRBY', slot, 'dead_dropped', #ids)
  end
  return #ids
end

-- Add messages to the DeadQueue, with the reason. Their records stay. `mades`: how often each was delivered; `details`: the text of
-- each error, or one for all. Where the topic has a retention, a few dead letters past it are dropped, more than are added.
local function add_dead(audited, ids, now, mades, reason, details, retention)
  for first = 1, #ids, ENTRIES_AT_ONCE do
    local last = math.min(first + ENTRIES_AT_ONCE - 1, #ids)
    local entries, times, noted = redis.call('HMGET', failures, unpack(ids, first, last)), {}, {}
    for i = first, last do
      local text = details
      if type(details) == 'table' then
        text = details[i]
      end
      times[#times + 1], times[#times + 2] = now, ids[i]
      noted[#noted + 1] = ids[i]
      noted[#noted + 1] = failure_entry(entries[i - first + 1], 0, mades[i], reason, text, now)
    end
    redis.call('ZADD', dead, unpack(times))
    redis.call('HSET', failures, unpack(noted))
  end
  redis.call('HINCRBY', slot, 'dead_lettered', #ids)
  if retention > 0 then
    drop_old_dead(audited, now - retention, now, math.max(10, 2 * #ids))
  end
end
