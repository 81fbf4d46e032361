--[[
query_rollback: give back the messages of a query whose lease has expired, or which has been ended.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   limit                1 to 1000
ARGV[4]   force                1: also before the lease expires
ARGV[5]   details              text of their failure entries if the owner was exact; query_settle
          recognizes the messages by this text
Returns   {number of messages given back, 1 if the query has more}
Cost      O(k log L), k = limit, L = leases of the slot
Atomic    A message's deadline becomes a deadline that has passed, and in the same step the query
          has it no longer in flight. `rollback_expired_leases` then handles it as any expired
          lease. Messages that query_fail took out of a batch are not changed. If the owner was
          exact, the ids stay in the log for 30 days. The newest number stays, so the query sees
          that its batch is gone. The first write needs no memory. A second run continues.
]]
--- @keys slot prepare failures query querylog queries leases querymarks
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/settle/attempts"
--- @include "lib/query"
local now = clock(ARGV[1])
check_names(ARGV[2])
local limit = whole_number(ARGV[3], 1, MOST, 'limit')
local created, max_retries = unpack(redis.call('HMGET', slot, 'created', 'max_retries'))
if not created then
  fail('GONE', slot)
end
local state = read_query()
local exact = state[EXACT] == '1'
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', failures)
redis.call('ZCARD', leases)
local lease_end = tonumber(redis.call('ZSCORE', queries, ARGV[2]) or now)
local before_log, tail, expired_to = log_range(state, 0)
local begin = expired_to - before_log -- position of the first message in flight, from 0
local log_ids = redis.call('LRANGE', querylog, begin, begin + limit - 1)
local marked = read_marks(expired_to + 1, expired_to + limit)
-- A key of a wrong type stops the script here.
redis.call('ZCARD', prepare)
if ARGV[4] ~= '1' and lease_end > now then
  return { 0, 0 }
end

-- Give these messages of the log a deadline that has passed.
local function expire_leases()
  local scores = redis.call('ZMSCORE', prepare, unpack(log_ids))
  local changed, ids, deliveries_left = {}, {}, {}
  for i = 1, #log_ids do
    local id, receipt = log_ids[i], scores[i] and tonumber(scores[i])
    if receipt and receipt >= QUERY_DEADLINE * 1000 and not marked[expired_to + i] then
      changed[#changed + 1], changed[#changed + 2] = ROLLED_BACK_END * 1000 + receipt % 1000, id
      ids[#ids + 1], deliveries_left[#ids + 1] = id, math.floor(receipt % 1000)
    end
  end
  if #ids == 0 then
    return
  end
  redis.call('ZADD', prepare, 'XX', unpack(changed))
  if exact then
    note_failures(ids, deliveries_left, tonumber(max_retries), 'l', ARGV[5], now)
  end
end

allow_oom(prepare)
if #log_ids > 0 then
  expire_leases()
  expired_to = expired_to + #log_ids
  if exact then
    redis.call('HSET', query, 'lapsed_to', expired_to)
  else
    trim_log(before_log, expired_to)
    drop_marks(expired_to)
  end
end
if tail > expired_to then
  return { #log_ids, 1 }
end
redis.call('HDEL', query, 'owner', 'owner_until')
set_expiry()
redis.call('ZREM', queries, ARGV[2])
note_first_end()
return { #log_ids, 0 }
