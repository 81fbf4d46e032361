-- leave: part of take. Takes the picked messages out of the StoreQueue and the merge index; those that have
-- expired are buried or dropped, and the live ones move up in ids, lefts and found. Ends the script when
-- none is left.
--- @include "lib/record"
local merge_keys, expired = {}, nil
for c = 1, #closer do
  local i = closer[c]
  local _, expiry, key = envelope(found[i])
  if key then
    local at = redis.call('HGET', merge, key)
    if at and string.sub(at, 1, 16) == ids[i] then
      merge_keys[#merge_keys + 1] = key
    end
  end
  if expiry and expiry <= now then
    expired = expired or {}
    expired[i] = true
  end
end
redis.call('ZCARD', dead)
redis.call('ZREM', store, unpack(ids, 1, all))
if #merge_keys > 0 then
  redis.call('HDEL', merge, unpack(merge_keys))
end
if expired then
  --- @include "lib/failure"
  local on = redis.call('HMGET', slot, 'on_expire', 'dead_retention_ms')
  local live, numbered = {}, {}
  n = 0
  for i = 1, all do
    local left = lefts and lefts[i]
    if not expired[i] then
      n = n + 1
      ids[n], found[n], live[n] = ids[i], found[i], left or nil
    elseif on[1] == 'drop' then
      redis.call('HDEL', records, ids[i])
      redis.call('HDEL', failures, ids[i])
      redis.call('HINCRBY', slot, 'expired', 1)
      numbered[#numbered + 1] = found[i]
    else
      bury(slot, dead, records, failures, s[9] and audit, ids[i], now, max_retries - (left or max_retries), 'x', '',
        tonumber(on[2]))
    end
  end
  lefts = lefts and live
  if s[9] and #numbered > 0 then
    --- @include "lib/depart"
    depart(slot, audit, 'accounted', numbers_in(numbered, number_of, {}), now)
  end
  if n == 0 then
    if again then
      remember(lane, number, '0:0:')
    end
    return reply
  end
end
