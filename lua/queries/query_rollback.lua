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
local first, tail, expired_to = log_range(state, 0)
local page = redis.call('LRANGE', querylog, expired_to - first, expired_to - first + limit - 1)
local marked = read_marks(expired_to + 1, expired_to + limit)
-- A key of a wrong type stops the script here.
redis.call('ZCARD', prepare)
if ARGV[4] ~= '1' and lease_end > now then
  return { 0, 0 }
end

-- Let the deadlines of the messages of the page pass.
local function expire_page()
  local scores, deadlines, ids, lefts = redis.call('ZMSCORE', prepare, unpack(page)), {}, {}, {}
  for i = 1, #page do
    local score = scores[i] and tonumber(scores[i])
    if score and score >= QUERY_DEADLINE * 1000 and not marked[expired_to + i] then
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = 1000 + score % 1000, page[i]
      ids[#ids + 1], lefts[#lefts + 1] = page[i], math.floor(score % 1000)
    end
  end
  if #ids == 0 then
    return
  end
  redis.call('ZADD', prepare, 'XX', unpack(deadlines))
  if exact then
    note_failures(ids, lefts, tonumber(max_retries), 'l', ARGV[5], now)
  end
end

allow_oom(prepare)
if #page > 0 then
  expire_page()
  expired_to = expired_to + #page
  if exact then
    redis.call('HSET', query, 'lapsed_to', expired_to)
  else
    trim_log(first, expired_to)
    drop_marks(expired_to)
  end
end
if tail > expired_to then
  return { #page, 1 }
end
redis.call('HDEL', query, 'owner', 'owner_until')
set_expiry()
redis.call('ZREM', queries, ARGV[2])
note_first_end()
return { #page, 0 }
