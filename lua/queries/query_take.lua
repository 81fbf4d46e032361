--[[
query_take: receive messages for a query. They move to the PrepareQueue, and to the end of the
query's log.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: the process that runs the query
ARGV[4]   lease_ms             1000 to 43 200 000: the messages go back if the lease is not renewed
          for this time
ARGV[5]   from                 the newest number that the caller knows
ARGV[6]   limit                1 to 4000
ARGV[7]   bytes                maximum bytes of records, but at least one message; 0: no maximum
ARGV[8]   created              the topic's stamp as the caller opened it. Another stamp is an error.
Returns   {number of messages in flight for the query after `from`,
           the newest number,
           1 if there may be more to receive, else 0,
           flags: 1 if leases have expired and need a rollback, plus 2 if a shared lease or the
           lease of a query has expired,
           bytes of the records if `bytes` is not 0, else 0}.
          If another owner runs the query, nothing changes, and two values follow:
           ms until its ownership ends,
           the other owner.
Cost      O(k log L), k = limit, L = leases of the slot. Records are read if messages may expire or
          merge, if the slot has a limit or is in order, and if `bytes` asks for it. Then at most
          1000 messages are received and 4 MiB are read; with a limit for each key, 12 MiB.
Atomic    If there are numbers after `from`, nothing is received, even if their leases have expired.
          So a command that was sent twice finds the same messages again or none. The same is true
          for a caller that died before it could store its messages. Numbers are used twice only
          after query_release has given them back. All keys are read and checked before anything
          moves. The first write needs no memory. If the slot has no more records, the script notes
          that no message of it expires.
]]
--- @keys slot store prepare records dead failures merge audit query querylog queries bodies rates pending targets results keeping
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/take/delivery_numbers"
--- @include "lib/query"
--- @include "lib/slot_fields"
--- @include "lib/take/reply_bits"
--- @include "lib/take/take_messages"
--- @include "lib/writes"
local RENEW_BELOW = 0.9 -- part of a lease: a take renews the lease if less is left
local now, now_us = clock(ARGV[1])
local run, owner = ARGV[2], ARGV[3]
check_names(run, owner)
local lease = whole_number(ARGV[4], LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
local from = whole_number(ARGV[5], 0, NUMBER_MOST, 'from')
local limit = whole_number(ARGV[6], 1, QUERY_MOST, 'limit')
local most_bytes = whole_number(ARGV[7], 0, NUMBER_MOST, 'bytes')
-- A query needs no session: its log answers a call that is sent twice.
local fields = read_take_fields('no_expiry')
local no_expiry = fields[EXTRA]
if fields[CREATED] ~= ARGV[8] then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
local state = read_query()
local before_log, tail, expired_to = log_range(state, from)
local in_flight = tail - math.max(expired_to, from)
local other_ms, other = other_owner(state, owner, now)
if other then
  return { in_flight, tail, 0, 0, 0, other_ms, other }
end
local lease_end = tonumber(redis.call('ZSCORE', queries, run) or 0)
if tail > from then -- the caller does not know these messages
  return { in_flight, tail, 1, 0, 0 }
end
-- Of all consumers. Read before the take, since a key of a wrong type stops the script here.
local slot_in_flight = redis.call('ZCARD', prepare)
local takes, delivery = tonumber(fields[TAKES] or 0) + 1, tonumber(fields[DELIVERED] or 0) + 1
local batch = take_messages({
  fields = fields, number = takes, limit = limit, ordered = false, now = now, none_due = false,
  most_bytes = most_bytes, no_expiry = no_expiry,
})
local n, ids, more, retries_left = batch.count, batch.ids, batch.more, batch.retries_left
local flags, bytes = 0, 0
if n < limit then
  local expired = count_expired(now)
  local shared_or_query_expired = fields[LEASES_UNTIL] and tonumber(fields[LEASES_UNTIL]) <= now
  flags = (expired > 0 and LEASES_EXPIRED or 0) + (shared_or_query_expired and SHARED_EXPIRED or 0)
end
if n == 0 then
  if not no_expiry and redis.call('HLEN', records) == 0 then
    allow_oom(prepare)
    redis.call('HSET', slot, 'no_expiry', 1)
  end
  return { 0, tail, more and 1 or 0, flags, 0 }
end
if most_bytes > 0 then
  --- @include "lib/records/large_bodies"
  for i = 1, n do
    local record = batch.records[i]
    local has_body = is_large(record)
    local size = large_size(record)
    bytes = bytes + #record + (has_body and size or 0)
  end
end
if delivery > BY_CLOCK then
  delivery = number_by_clock(delivery, now_us)
end
local has_in_flight, max_retries = tail > expired_to, tonumber(fields[MAX_RETRIES])
-- If the query has nothing in flight, no receipt has the number of a page. So pages begin again.
local page = has_in_flight and tonumber(state[PAGE] or 0) + 1 or 1
local receipts = {}
if fields[ORDERED] then
  -- A message that is given back goes to its former place, by its delivery number.
  receipts = receipts_of(ids, n, QUERY_DEADLINE + page, delivery, max_retries, retries_left)
else
  local unfailed_receipt = receipt_text(QUERY_DEADLINE + page, max_retries, delivery)
  for i = 1, n do
    local receipt = unfailed_receipt
    if retries_left and retries_left[i] then
      receipt = receipt_text(QUERY_DEADLINE + page, retries_left[i], delivery)
    end
    receipts[2 * i - 1], receipts[2 * i] = receipt, ids[i]
  end
end
add_many(prepare, receipts, slot_in_flight)
redis.call('RPUSH', querylog, unpack(ids))
if not has_in_flight then
  redis.call('PERSIST', query)
  if before_log < tail then -- the log has ids whose lease has expired
    redis.call('PERSIST', querylog)
  end
end
redis.call('HSET', query, 'tail', tail + n, 'page', page, 'owner', owner)
if lease_end - now < RENEW_BELOW * lease then
  lease_end = now + lease
  redis.call('ZADD', queries, lease_end, run)
end
-- If this time is too early, a rollback corrects it.
local first_end = math.min(lease_end, tonumber(fields[LEASES_UNTIL] or lease_end))
redis.call('HSET', slot, 'delivered', delivery + n - 1, 'takes', takes,
  'leases_until', string.format('%.0f', first_end))
return { n, tail + n, more and 1 or 0, flags, bytes }
