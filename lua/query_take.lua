--[[
query_take: take messages for a query. They move to the PrepareQueue, and to the end of the query's log.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  message id -> score
KEYS[3]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   records        hash  message id -> record
KEYS[5]   DeadQueue      zset  message id -> time of death, epoch ms
KEYS[6]   failures       hash  message id -> what it failed of
KEYS[7]   merge index    hash  merge key -> id and when it opened
KEYS[8]   audit          zset  numbers of messages that are not accounted for
KEYS[9]   query          hash  tail: the number of the newest in the log; owner, and until when it is that
KEYS[10]  query log      list  ids of what the query holds; the last one's number is the tail
KEYS[11]  queries        zset  run of a query -> end of its lease, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                who runs it, 1 to 200 bytes
ARGV[4]   lease_ms             1000 to 43 200 000: what it holds goes back when nobody has renewed it for so long
ARGV[5]   owner_ms             1000 to 43 200 000: nobody else may run it for so long
ARGV[6]   from                 the newest number that the caller knows
ARGV[7]   limit                1 to 1000
ARGV[8]   exact                1 or 0: see query_renew
ARGV[9]   created              the topic's stamp, as the caller opened it: another one is an error
Returns   {how many messages the query holds beyond `from`, the newest number, ms the owner has left, the owner}:
          the last two only where another one has it, and nothing was done
Cost      O(k log L), k = limit; at most 16 MiB of records are looked at
Atomic    Where numbers beyond `from` were given out, nothing is taken, also if what had them has lapsed: a command
          sent twice, and a caller that died before it could note what it has, find the same messages again or
          none. Numbers are never used twice.
          Everything taken is read and checked before it moves. The first write needs no memory.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/families"
--- @include "lib/drain"
--- @include "lib/query"
local slot, store, prepare, records, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, merge, audit, query, log, queries = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local now, now_us = clock(ARGV[1])
local run, owner = ARGV[2], ARGV[3]
names(run, owner)
local lease = whole(ARGV[4], 1000, 43200000, 'lease_ms')
local owner_ms = whole(ARGV[5], 1000, 43200000, 'owner_ms')
local from = whole(ARGV[6], 0, 9e15, 'from')
local limit, waits, ordered = whole(ARGV[7], 1, 1000, 'limit'), '0', false
local exact = whole(ARGV[8], 0, 1, 'exact')
local created = redis.call('HGET', slot, 'created')
if created ~= ARGV[9] then
  fail(created and 'ANEW' or 'GONE', slot)
end
local other, left = foreign(query, owner, now)
local _, tail, lapsed = extent(query, log, from)
local held = tail - math.max(lapsed, from)
if other then
  return { held, tail, left, other }
end
redis.call('ZCARD', queries)
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
local remember, lane, number, again = nil, nil, nil, false -- the log answers a call that is repeated
local function taken()
  --- @include "lib/take"
  local delivery, leases = reply[4], {}
  local base = FAR * 1000 + (lefts and 0 or max_retries)
  for i = 1, n do
    leases[2 * i - 1] = base + (lefts and lefts[i] or 0) + (delivery + i - 1) % 2048 / 2048
    leases[2 * i] = ids[i]
  end
  --- @include "lib/add_wide"
  add_wide(prepare, leases)
  redis.call('RPUSH', log, unpack(ids))
  tail, held = tail + n, n
end
if tail == from then
  taken() -- it ends early where there is nothing to take
end
drain(store)
redis.call('HSET', query, 'tail', tail)
hold_on(slot, query, log, queries, run, owner, now, lease, owner_ms, string.format('%d', exact))
return { held, tail }
