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
  local second = math.floor(now / 1000) * 1000 -- a deadline is a whole second, a receipt just above it
  local lapsed = redis.call('ZCOUNT', prepare, '-inf', '(' .. string.format('%.0f', second + 1000)) > 0 and 1 or 0
  local settings = { max_retries = max_retries, chunk = tonumber(s[3]), order = tonumber(s[4] or 0) }
  local ids, lefts, joined = pick(keys, settings, now, limit, takes % 5 == 0)
  local picked = #ids
  local found, closer = fetch(keys.records, ids, settings.chunk)
  local merge_keys, expired
  if closer then
    merge_keys, expired = leaving(closer, found, ids, keys.merge, now)
    redis.call('ZCARD', keys.dead)
  end
  local fields = { 0, lapsed, 0, tonumber(s[5] or 0) + 1, tonumber(s[7] or 0), '', {}, {} }
  if #found == 0 then
    fields[1] = joined > 0 and 0 or soon(store, prepare, now_us)
    if waits == '1' and fields[1] ~= 0 and tonumber(s[8] or 0) < now + 1500 then
      say_waiting(slot, store, now)
    end
    return nil, fields
  end

  redis.call('ZREM', store, unpack(ids, 1, #found))
  if merge_keys and #merge_keys > 0 then
    redis.call('HDEL', keys.merge, unpack(merge_keys))
  end
  local all = #found
  local n = all
  if expired then
    n = 0
    for i = 1, all do
      if not expired[i] then
        n = n + 1
        ids[n], lefts[n], found[n] = ids[i], lefts[i], found[i]
      elseif s[9] == 'drop' then
        redis.call('HDEL', keys.records, ids[i])
        redis.call('HDEL', keys.failures, ids[i])
        redis.call('HINCRBY', slot, 'expired', 1)
      else
        bury(slot, keys.dead, keys.records, keys.failures, ids[i], now,
          max_retries - (lefts[i] or max_retries), 'x', '', tonumber(s[10]))
      end
    end
  end
  if n == 0 then
    return nil, fields
  end
  redis.call('HSET', slot, 'delivered', fields[4] + n - 1, 'takes', takes)
  if next(lefts) then
    local marks = {}
    for i = 1, n do
      lefts[i] = lefts[i] or max_retries
      marks[i] = string.char(lefts[i])
    end
    fields[6] = table.concat(marks)
  end
  if #found > n or #ids > n then
    ids, found = { unpack(ids, 1, n) }, { unpack(found, 1, n) }
  end
  fields[7], fields[8] = ids, found
  return { n = n, ids = ids, lefts = fields[6] ~= '' and lefts, most = max_retries,
    drained = all < limit and all == picked and joined == 0 }, fields
end
