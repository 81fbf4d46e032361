--[[
query_lapse: give back what a query held whose lease has run out, or that is not wanted any more.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   query          hash  tail: the number of the newest in the log; owner, and until when it is that
KEYS[4]   query log      list  ids of what the query holds; the last one's number is the tail
KEYS[5]   queries        zset  run of a query -> end of its lease, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   limit                1 to 1000
ARGV[4]   force                1: whatever its lease says
Returns   {how many were given back, 1 if it holds more}
Cost      O(k log L), k = limit, L = leases of the slot
Atomic    A message leaves the log, and its deadline becomes one that has passed, in one step; `rollback` takes
          it from there, as any lease that has run out. The number of the newest stays, so that the query sees
          that its batch is gone. No write needs memory but the last. Run twice, it goes on.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drain"
--- @include "lib/query"
local slot, prepare, query, log, queries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = clock(ARGV[1])
names(ARGV[2])
local limit = whole(ARGV[3], 1, 1000, 'limit')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
redis.call('HLEN', query)
local until_ms = tonumber(redis.call('ZSCORE', queries, ARGV[2]) or now)
local page = redis.call('LRANGE', log, 0, limit - 1)
redis.call('ZCARD', prepare)
if ARGV[4] ~= '1' and until_ms > now then
  return { 0, 0 }
end
drain(prepare)
if #page > 0 then
  local scores, lapsed = redis.call('ZMSCORE', prepare, unpack(page)), {}
  for i = 1, #page do
    local score = scores[i] and tonumber(scores[i])
    if score and score >= FAR * 1000 then
      lapsed[#lapsed + 1], lapsed[#lapsed + 2] = 1000 + score % 1000, page[i]
    end
  end
  if #lapsed > 0 then
    redis.call('ZADD', prepare, 'XX', unpack(lapsed))
  end
  redis.call('LTRIM', log, #page, -1)
end
if redis.call('LLEN', log) > 0 then
  return { #page, 1 }
end
redis.call('ZREM', queries, ARGV[2])
redis.call('HDEL', query, 'owner', 'owner_until')
keep(query, log)
local first = redis.call('ZRANGE', queries, 0, 0, 'WITHSCORES')
if first[2] then
  redis.call('HSET', slot, 'queries_until', string.format('%.0f', tonumber(first[2])))
else
  redis.call('HDEL', slot, 'queries_until')
end
return { #page, 0 }
