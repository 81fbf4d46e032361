--[[
query_rollback: give back the messages of a query whose lease expired, or that is no longer wanted.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   limit                1 to 1000
ARGV[4]   force                1: also before the lease expires
ARGV[5]   details              text of their failure entries where the owner was exact: query_settle
                               knows them by it
Returns   {how many were given back, 1 if it holds more}
Cost      O(k log L), k = limit, L = leases of the slot
Atomic    In one step the query no longer holds a message, and the message's deadline becomes one
          that has passed; `rollback` then treats it as any expired lease. What query_fail took out
          of a batch stays where it is. Where the owner was exact, the ids stay in the log for 30
          days. The newest number stays, so that the query sees that its batch is gone. The first
          write needs no memory. A second run goes on.
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
redis.call('HLEN', failures)
redis.call('ZCARD', leases)
local until_ms = tonumber(redis.call('ZSCORE', queries, ARGV[2]) or now)
local first, tail, expired_to = log_range(state, 0)
local page = redis.call('LRANGE', querylog, expired_to - first, expired_to - first + limit - 1)
local marked = read_marks(expired_to + 1, expired_to + limit)
redis.call('ZCARD', prepare)
if ARGV[4] ~= '1' and until_ms > now then
  return { 0, 0 }
end
allow_oom(prepare)
if #page > 0 then
  local scores, deadlines, ids, lefts = redis.call('ZMSCORE', prepare, unpack(page)), {}, {}, {}
  for i = 1, #page do
    local score = scores[i] and tonumber(scores[i])
    if score and score >= FAR * 1000 and not marked[expired_to + i] then
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = 1000 + score % 1000, page[i]
      if exact then
        ids[#ids + 1], lefts[#lefts + 1] = page[i], math.floor(score % 1000)
      end
    end
  end
  if #deadlines > 0 then
    redis.call('ZADD', prepare, 'XX', unpack(deadlines))
    note_failures(ids, lefts, tonumber(max_retries), 'l', ARGV[5], now)
  end
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
