--[[
query_renew: hold what a query has for longer, and tell how much of a batch that is.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   query          hash  tail: the number of the newest in the log; settled; read; owner, and until when it is that
KEYS[3]   query log      list  ids of what the query holds; the last one's number is the tail
KEYS[4]   queries        zset  run of a query -> end of its lease, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                who runs it, 1 to 200 bytes
ARGV[4]   lease_ms             1000 to 43 200 000
ARGV[5]   owner_ms             1000 to 43 200 000
ARGV[6]   exact                1: the owner ends a batch only when all of it was handed out, so what has lapsed
                               is kept in the log, for query_settle; 0: what has lapsed is forgotten
ARGV[7]   after                the batch begins after this number
ARGV[8]   upto                 and ends with this one
Returns   {how many messages of the batch are held, the newest number, the newest that is settled, the newest that
          was handed out, ms the owner has left, the owner}: the last two only where another one has it, and nothing
          was done
Cost      O(log q), q = queries that hold messages of the slot
Atomic    The count is of the moment of the renewal. The first write needs no memory. Run twice, it does the same.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drain"
--- @include "lib/query"
local slot, query, log, queries = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now = clock(ARGV[1])
names(ARGV[2], ARGV[3])
local lease = whole(ARGV[4], 1000, 43200000, 'lease_ms')
local owner_ms = whole(ARGV[5], 1000, 43200000, 'owner_ms')
local exact = whole(ARGV[6], 0, 1, 'exact')
local after, upto = whole(ARGV[7], 0, 9e15, 'after'), whole(ARGV[8], 0, 9e15, 'upto')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local _, tail, lapsed = extent(query, log, 0)
local held = math.max(0, math.min(upto, tail) - math.max(after, lapsed))
local q = redis.call('HMGET', query, 'settled', 'read')
local settled, handed = tonumber(q[1] or 0), tonumber(q[2] or 0)
local other, left = foreign(query, ARGV[3], now)
if other then
  return { held, tail, settled, handed, left, other }
end
redis.call('ZCARD', queries)
drain(queries)
hold_on(slot, query, log, queries, ARGV[2], ARGV[3], now, lease, owner_ms, string.format('%d', exact))
return { held, tail, settled, handed }
