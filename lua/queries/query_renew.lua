--[[
query_renew: renew the lease of a query, count its messages of a batch, and store the report of its
owner.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: the process that runs the query
ARGV[4]   lease_ms             1000 to 43 200 000
ARGV[5]   owner_ms             1000 to 43 200 000: how long no other process may become the owner;
          or 0: the caller renews its ownership in another slot, so it also takes over here
ARGV[6]   exact                1: the owner ends a batch only after it has read the whole batch, so
          ids whose lease has expired stay in the log, for query_settle; 0: they are dropped
ARGV[7]   after                the batch begins after this number
ARGV[8]   upto                 last number of the batch
ARGV[9]   report               the owner's report, for query_inspect: at most 500 bytes. '': no new
          report
Returns   {number of messages of the batch in flight for the query,
           the newest number,
           the newest settled number,
           the newest number handed out}.
          If another owner still runs the query, nothing changes, and two values follow:
           ms until its ownership ends,
           the other owner.
Cost      O(log q), q = queries with messages of the slot. O(n) if n ids whose lease has expired are
          dropped.
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
local before_log, tail, expired_to = log_range(state, 0)
local in_flight = math.max(0, math.min(upto, tail) - math.max(after, expired_to))
local settled, handed_out = tonumber(state[SETTLED] or 0), tonumber(state[READ] or 0)
local other_ms, other = other_owner(state, ARGV[3], now)
if other and owner_ms > 0 and other_ms > 0 then
  return { in_flight, tail, settled, handed_out, other_ms, other }
end
-- A key of a wrong type stops the script here, before it writes anything.
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
  trim_log(before_log, expired_to)
end
if tail > expired_to then
  redis.call('PERSIST', query)
  redis.call('PERSIST', querylog)
else
  set_expiry()
end
if tail > expired_to or owner_ms > 0 then
  -- A query without messages is listed only in the slot with its ownership.
  redis.call('ZADD', queries, now + lease, ARGV[2])
else
  redis.call('ZREM', queries, ARGV[2])
end
note_first_end()
return { in_flight, tail, settled, handed_out }
