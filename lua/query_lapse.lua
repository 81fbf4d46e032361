--[[
query_lapse: give back what a query held whose lease has run out, or that is not wanted any more.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   failures       hash  message id -> what it failed of
KEYS[4]   query          hash  tail: the number of the newest in the log; owner, and until when it is that; exact;
                               lapsed_to: the newest number that has lapsed and is kept in the log
KEYS[5]   query log      list  ids of what the query holds; the last one's number is the tail
KEYS[6]   queries        zset  run of a query -> end of its lease, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   limit                1 to 1000
ARGV[4]   force                1: whatever its lease says
ARGV[5]   told                 what their failures tell where the owner was exact: query_settle knows them by it
Returns   {how many were given back, 1 if it holds more}
Cost      O(k log L), k = limit, L = leases of the slot
Atomic    A message is held no more, and its deadline becomes one that has passed, in one step; `rollback` takes
          it from there, as any lease that has run out. Where the owner was exact, its id stays in the log for 30
          days. The number of the newest stays, so that the query sees that its batch is gone. The first write
          needs no memory. Run twice, it goes on.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drain"
--- @include "lib/failure"
--- @include "lib/query"
local slot, prepare, failures, query, log, queries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now = clock(ARGV[1])
names(ARGV[2])
local limit = whole(ARGV[3], 1, 1000, 'limit')
local s = redis.call('HMGET', slot, 'created', 'max_retries')
if not s[1] then
  fail('GONE', slot)
end
local exact = redis.call('HGET', query, 'exact') == '1'
redis.call('HLEN', failures)
local until_ms = tonumber(redis.call('ZSCORE', queries, ARGV[2]) or now)
local first, tail, lapsed_to = extent(query, log, 0)
local page = redis.call('LRANGE', log, lapsed_to - first, lapsed_to - first + limit - 1)
redis.call('ZCARD', prepare)
if ARGV[4] ~= '1' and until_ms > now then
  return { 0, 0 }
end
drain(prepare)
if #page > 0 then
  local scores, lapsed, told = redis.call('ZMSCORE', prepare, unpack(page)), {}, {}
  for i = 1, #page do
    local score = scores[i] and tonumber(scores[i])
    if score and score >= FAR * 1000 then
      local left = math.floor(score % 1000)
      lapsed[#lapsed + 1], lapsed[#lapsed + 2] = 1000 + score % 1000, page[i]
      if exact then
        told[#told + 1], told[#told + 2] = page[i], failure(left, tonumber(s[2]) - left + 1, 'l', ARGV[5])
      end
    end
  end
  if #lapsed > 0 then
    redis.call('ZADD', prepare, 'XX', unpack(lapsed))
    if exact then
      redis.call('HSET', failures, unpack(told))
    end
  end
  lapsed_to = lapsed_to + #page
  if exact then
    redis.call('HSET', query, 'lapsed_to', lapsed_to)
  else
    forget(query, log, first, lapsed_to)
  end
end
if tail > lapsed_to then
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
