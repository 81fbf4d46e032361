--[[
query_renew: renew the lease of a query, count what it holds of a batch, and keep the report of its
owner.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: which process runs the query
ARGV[4]   lease_ms             1000 to 43 200 000
ARGV[5]   owner_ms             1000 to 43 200 000: no other owner may run it for so long; or 0: the
                               ownership is renewed in another slot, where the caller has it, so it
                               takes over here
ARGV[6]   exact                1: the owner ends a batch only when all of it was handed out, so ids
                               whose lease expired are kept in the log, for query_settle; 0: they
                               are forgotten
ARGV[7]   after                the batch begins after this number
ARGV[8]   upto                 and ends with this one
ARGV[9]   report               what the owner tells of itself, for query_inspect: at most 500 bytes;
                               '': as before
Returns   {how many messages of the batch are held, the newest number, the newest that is settled,
          the newest that was handed out, ms the other owner has left, the other owner}: the last
          two only where another owner runs the query, and nothing was done
Cost      O(log q), q = queries that hold messages of the slot; where ids whose lease expired are
          forgotten, O(n) of them
Atomic    The count is of the moment of the renewal. The first write needs no memory. A second run
          does the same.
]]
--- @keys slot query querylog queries leases
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/query"
local REPORT_MOST = 500 -- bytes
local now = clock(ARGV[1])
check_names(ARGV[2], ARGV[3])
local lease = whole_number(ARGV[4], LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
local owner_ms = ARGV[5] == '0' and 0
  or whole_number(ARGV[5], LEASE_LEAST_MS, LEASE_MOST_MS, 'owner_ms')
local exact = whole_number(ARGV[6], 0, 1, 'exact')
local after = whole_number(ARGV[7], 0, NUMBER_MOST, 'after')
local upto = whole_number(ARGV[8], 0, NUMBER_MOST, 'upto')
if #ARGV[9] > REPORT_MOST then
  fail('ARG', 'report')
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local state = read_query()
local first, tail, expired_to = log_range(state, 0)
local held = math.max(0, math.min(upto, tail) - math.max(after, expired_to))
local settled, handed = tonumber(state[SETTLED] or 0), tonumber(state[READ] or 0)
local left, other = other_owner(state, ARGV[3], now)
if other and owner_ms > 0 and left > 0 then
  return { held, tail, settled, handed, left, other }
end
redis.call('ZCARD', queries)
redis.call('ZCARD', leases)
allow_oom(queries)
redis.call('HSET', query, 'owner', ARGV[3], 'exact', string.format('%d', exact))
if ARGV[9] ~= '' then
  redis.call('HSET', query, 'report', ARGV[9])
end
if owner_ms > 0 then
  redis.call('HSET', query, 'owner_until', now + owner_ms)
else
  redis.call('HDEL', query, 'owner_until')
end
if exact == 0 then
  trim_log(first, expired_to)
end
if tail > expired_to then
  redis.call('PERSIST', query)
  redis.call('PERSIST', querylog)
else
  set_expiry()
end
if tail > expired_to or owner_ms > 0 then
  -- A query that holds nothing is listed only in the slot with its ownership.
  redis.call('ZADD', queries, now + lease, ARGV[2])
else
  redis.call('ZREM', queries, ARGV[2])
end
note_first_end()
return { held, tail, settled, handed }
