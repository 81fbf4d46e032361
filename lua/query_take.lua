--[[
query_take: take messages for a query. They move to the PrepareQueue, and to the end of the query's log.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   records        hash  member -> record
KEYS[5]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[6]   failures       hash  member -> failure entry
KEYS[7]   merge index    hash  merge key -> member and when it opened
KEYS[8]   audit          zset  open numbers of audited messages
KEYS[9]   query          hash  tail: the newest number in the log; owner and owner_until
KEYS[10]  query log      list  members that the query holds; the last one has the number `tail`
KEYS[11]  queries        zset  run of a query -> end of its lease, epoch ms
KEYS[12]  large bodies   hash  member and 8 bytes of the record -> body
KEYS[13]  leases         zset  number of a shared lease -> its end, epoch ms
KEYS[14]  rates          zset  key of a limit -> when its bucket will be full, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: which process runs the query
ARGV[4]   lease_ms             1000 to 43 200 000: its messages go back when nobody has renewed the lease for so long
ARGV[5]   owner_ms             1000 to 43 200 000: no other owner may run it for so long
ARGV[6]   from                 the newest number that the caller knows
ARGV[7]   limit                1 to 1000
ARGV[8]   exact                1 or 0: see query_renew
ARGV[9]   created              the topic's stamp as the caller opened it; another stamp is an error
Returns   {how many messages the query holds beyond `from`, the newest number, ms the other owner has left, the other
          owner}: the last two only where another owner runs the query, and nothing was done
Cost      O(k log L), k = limit; at most 4 MiB of records are read, with a limit for each key three times that
Atomic    Where numbers beyond `from` were given out, nothing is taken, even if their leases have expired: a command sent
          twice, and a caller that died before it could note its messages, find the same messages again or none.
          Numbers are never used twice. All messages are read and checked before they move. The first write needs no
          memory.
]]
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/delivery_numbers"
--- @include "lib/receipt"
--- @include "lib/writes"
--- @include "lib/query"
--- @include "lib/slot_fields"
local slot, store, prepare, query, log, queries, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[9], KEYS[10], KEYS[11], KEYS[13]
local now, now_us = clock(ARGV[1])
local run, owner = ARGV[2], ARGV[3]
check_names(run, owner)
local lease = whole_number(ARGV[4], LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
local owner_ms = whole_number(ARGV[5], LEASE_LEAST_MS, LEASE_MOST_MS, 'owner_ms')
local from = whole_number(ARGV[6], 0, NUMBER_MOST, 'from')
local limit = whole_number(ARGV[7], 1, MOST, 'limit')
local exact = whole_number(ARGV[8], 0, 1, 'exact')
local created = redis.call('HGET', slot, 'created')
if created ~= ARGV[9] then
  fail(created and 'ANEW' or 'GONE', slot)
end
local other, left = other_owner(query, owner, now)
local _, tail, expired_to = log_range(query, log, from)
local held = tail - math.max(expired_to, from)
if other then
  return { held, tail, left, other }
end
redis.call('ZCARD', queries)
redis.call('ZCARD', leases)
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
if tail == from then
  --- @include "lib/take_messages"
  local keys = { unpack(KEYS, 1, 8) }
  keys[BODIES], keys[RATES] = KEYS[12], KEYS[14]
  local fields = read_take_fields(slot, 'created') -- the log answers a call that is repeated, so there is no session
  local takes, first = tonumber(fields[TAKES] or 0) + 1, tonumber(fields[DELIVERED] or 0) + 1
  local n, _, _, _, ids, _, retries_left = take_messages(keys, fields, takes, limit, false, now)
  if n > 0 then
    if first > BY_CLOCK then
      first = number_by_clock(slot, first, now_us)
    end
    local receipts = receipts_of(ids, n, FAR, first, tonumber(fields[MAX_RETRIES]), retries_left)
    add_many(prepare, receipts)
    redis.call('RPUSH', log, unpack(ids))
    redis.call('HSET', slot, 'delivered', first + n - 1, 'takes', takes)
    tail, held = tail + n, n
  end
end
allow_oom(store)
redis.call('HSET', query, 'tail', tail)
renew_lease(slot, query, log, queries, leases, run, owner, now, lease, owner_ms, string.format('%d', exact))
return { held, tail }
