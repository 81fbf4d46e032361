-- Suspending messages, for the script release.
--- @needs slot bodies waits
--- @include "lib/events/waits"
--- @include "lib/records/record_bytes"

-- Note that messages wait for the event with this key, until `limit` (epoch ms). Call it after a
-- write that frees memory.
local function suspend(ids, key, now, limit)
  local names, fields, checks, waiting, new = nil, {}, {}, 0, 0
  local wait = SUSPENDED .. write48(now) .. write48(limit) .. key
  names = wait_names(ids)
  local before = redis.call('HMGET', bodies, unpack(names))
  for i = 1, #ids do
    fields[2 * i - 1], fields[2 * i] = names[i], wait
    checks[2 * i - 1], checks[2 * i] = now, ids[i]
    new = new + (before[i] and 0 or 1)
    local former_key = awaited_key(before[i])
    waiting = waiting + (former_key and 0 or 1)
  end
  redis.call('HSET', bodies, unpack(fields))
  redis.call('ZADD', waits, unpack(checks))
  redis.call('HINCRBY', slot, 'waited', new)
  redis.call('HINCRBY', slot, 'large', new)
  redis.call('HINCRBY', slot, 'suspended', waiting)
end
