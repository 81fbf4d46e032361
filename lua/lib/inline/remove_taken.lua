--[[
remove_taken: remove the picked messages from the StoreQueue and the merge index, for take_messages. Those that have
expired are dropped or go to the DeadQueue, and the live ones move up in ids, taken and retries_left.

Reads:     slot, store, records, dead, failures, merge, audit, bodies: keys
           s, now, all, max_retries, reply, again
           call: where again is true
           to_inspect: the positions of the records to look at
           ids, taken, n, retries_left
Writes:    retries_left
           n: how many are live
Declares:  merge_keys, expired
Returns for the caller: yes: the reply, when all have expired
]]
--- @include "lib/envelope"
--- @include "lib/member"
local merge_keys, expired = {}, nil
for c = 1, #to_inspect do
  local i = to_inspect[c]
  local _, expiry, key = envelope(taken[i])
  if key then
    local entry = redis.call('HGET', merge, key)
    if entry and string.sub(entry, 1, MEMBER) == ids[i] then
      merge_keys[#merge_keys + 1] = key
    end
  end
  if expiry and expiry <= now then
    expired = expired or {}
    expired[i] = true
  end
end
redis.call('ZCARD', dead)
redis.call('HLEN', bodies)
redis.call('ZREM', store, unpack(ids, 1, all))
if #merge_keys > 0 then
  redis.call('HDEL', merge, unpack(merge_keys))
end
if expired then
  --- @include "lib/dead_letters"
  local on_expire = redis.call('HMGET', slot, 'on_expire', 'dead_retention_ms')
  local live, gone, mades, dropped = {}, {}, {}, {}
  n = 0
  for i = 1, all do
    local left = retries_left and retries_left[i]
    if not expired[i] then
      n = n + 1
      ids[n], taken[n], live[n] = ids[i], taken[i], left or nil
    else
      gone[#gone + 1], dropped[#dropped + 1] = ids[i], taken[i]
      mades[#mades + 1] = max_retries - (left or max_retries)
    end
  end
  if on_expire[1] == 'drop' then
    drop_records(slot, records, bodies, gone)
    redis.call('HDEL', failures, unpack(gone))
    redis.call('HINCRBY', slot, 'expired', #gone)
  else
    add_dead(slot, dead, records, bodies, failures, s[9] and audit, gone, now, mades, 'x', '', tonumber(on_expire[2]))
    dropped = {}
  end
  retries_left = retries_left and live
  if s[9] and #dropped > 0 then
    --- @include "lib/audit"
    account_for(slot, audit, 'accounted', add_numbers(dropped, number_of, {}), now)
  end
  if n == 0 then
    if again then
      --- @include "lib/replay"
      remember(slot, call, now, '0:0:')
    end
    return reply
  end
end
