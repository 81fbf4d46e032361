--[[
query_rollback: give back the messages of a query whose lease expired, or that is no longer wanted.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   failures       hash  member -> failure entry
KEYS[4]   query          hash  tail: the newest number in the log; owner and owner_until; exact; lapsed_to: the newest
                               number that was given back and is kept in the log
KEYS[5]   query log      list  members that the query holds; the last one has the number `tail`
KEYS[6]   queries        zset  run of a query -> end of its lease, epoch ms
KEYS[7]   leases         zset  number of a shared lease -> its end, epoch ms
KEYS[8]   query marks    zset  number in the log, r or d, and the receipt that the message had -> the number
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   limit                1 to 1000
ARGV[4]   force                1: also before the lease expires
ARGV[5]   details              text of their failure entries where the owner was exact: query_settle knows them by it
Returns   {how many were given back, 1 if it holds more}
Cost      O(k log L), k = limit, L = leases of the slot
Atomic    In one step the query no longer holds a message, and the message's deadline becomes one that has passed;
          `rollback` then treats it as any expired lease. What query_fail took out of a batch stays where it is. Where the
          owner was exact, the ids stay in the log for 30 days. The newest number stays, so that the query sees that its
          batch is gone. The first write needs no memory. A second run goes on.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/attempts"
--- @include "lib/query"
local slot, prepare, failures, query, log, queries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now = clock(ARGV[1])
check_names(ARGV[2])
local limit = whole_number(ARGV[3], 1, MOST, 'limit')
local created, max_retries = unpack(redis.call('HMGET', slot, 'created', 'max_retries'))
if not created then
  fail('GONE', slot)
end
local state = read_query(query)
local exact = state[EXACT] == '1'
redis.call('HLEN', failures)
redis.call('ZCARD', KEYS[7])
local until_ms = tonumber(redis.call('ZSCORE', queries, ARGV[2]) or now)
local first, tail, expired_to = log_range(state, log, 0)
local page = redis.call('LRANGE', log, expired_to - first, expired_to - first + limit - 1)
local marked = read_marks(KEYS[8], expired_to + 1, expired_to + limit)
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
    note_failures(failures, ids, lefts, tonumber(max_retries), 'l', ARGV[5], now)
  end
  expired_to = expired_to + #page
  if exact then
    redis.call('HSET', query, 'lapsed_to', expired_to)
  else
    trim_log(query, log, first, expired_to)
    drop_marks(KEYS[8], expired_to)
  end
end
if tail > expired_to then
  return { #page, 1 }
end
redis.call('HDEL', query, 'owner', 'owner_until')
set_expiry(query, log)
redis.call('ZREM', queries, ARGV[2])
note_first_end(slot, queries, KEYS[7])
return { #page, 0 }
