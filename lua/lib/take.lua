-- take: what prepare and pop share. Picks, reads and checks; then takes the picked messages out of the
-- StoreQueue, and sees to those that have expired. Returns the live ones, or nil when there are none;
-- and always the reply's first fields.
local function take(keys, now, now_us, limit, waits)
  local slot, store, prepare = keys.slot, keys.store, keys.prepare
  local s = redis.call('HMGET', slot, 'created', 'max_retries', 'chunk', 'order', 'delivered', 'takes',
    'accepted', 'waiting', 'on_expire', 'dead_retention_ms')
  if not s[1] then
    fail('GONE', slot)
  end
  local max_retries, takes = tonumber(s[2]), tonumber(s[6] or 0) + 1
  local lease = redis.call('ZRANGE', prepare, 0, 0, 'WITHSCORES')[2]
  local lapsed = lease and math.floor(tonumber(lease) / 1000) * 1000 <= now and 1 or 0
  local settings = { max_retries = max_retries, chunk = tonumber(s[3]), order = tonumber(s[4] or 0) }
  local order = settings.order
  local ids, lefts, joined = pick(keys, settings, now, limit, takes % 5 == 0)
  local found = fetch(keys.records, ids, settings.chunk)
  local merge_keys, expired = leaving(found, ids, keys.merge, now)
  if expired then
    redis.call('ZCARD', keys.dead)
  end
  if settings.order ~= order then
    redis.call('HSET', slot, 'order', settings.order)
  end
  local fields = { 0, lapsed, 0, tonumber(s[5] or 0) + 1, tonumber(s[7] or 0), '' }
  if #found == 0 then
    fields[1] = joined > 0 and 0 or soon(store, prepare, now_us)
    if waits == '1' and fields[1] ~= 0 and tonumber(s[8] or 0) < now + 1500 then
      redis.call('HSET', slot, 'waiting', now + 3000)
    end
    return nil, fields
  end

  redis.call('ZREM', store, unpack(ids, 1, #found))
  if merge_keys then
    redis.call('HDEL', keys.merge, unpack(merge_keys))
  end
  local n = #found
  if expired then
    n = 0
    for i = 1, #found do
      if not expired[i] then
        n = n + 1
        ids[n], lefts[n], found[n] = ids[i], lefts[i], found[i]
      elseif s[9] == 'drop' then
        redis.call('HDEL', keys.records, ids[i])
        redis.call('HDEL', keys.failures, ids[i])
        redis.call('HINCRBY', slot, 'expired', 1)
      else
        bury(slot, keys.dead, keys.records, keys.failures, ids[i], now, max_retries - lefts[i], 'x', '', tonumber(s[10]))
      end
    end
  end
  if n == 0 then
    return nil, fields
  end
  redis.call('HSET', slot, 'delivered', fields[4] + n - 1, 'takes', takes)
  local failed = false
  for i = 1, n do
    failed = failed or lefts[i] ~= max_retries
  end
  if failed then
    fields[6] = string.char(unpack(lefts, 1, n))
  end
  return { n = n, ids = ids, lefts = lefts, records = found, drained = #found < limit and joined == 0 }, fields
end
