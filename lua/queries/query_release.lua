--[[
query_release: give back the messages after a number of a query's log, if none was handed out. It
is as if the query had not received them. `failures` and `records` are only read.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: the process that runs the query
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6]   after                messages after this number
ARGV[7]   limit                1 to 1000
Returns   {number of messages given back,
           the newest number after that,
           1 if there are more to give back, else 0}.
          If another owner runs the query, nothing changes, and two values follow:
           ms until its ownership ends,
           the other owner.
Cost      O(n log L), n = limit, L = members of the slot, and up to 4 MiB of records
Atomic    If a number after `after` was handed out, nothing is given back. Each message goes where
          `release` would put it, and uses up no retry. The newest messages are given back first, so
          after several calls the oldest message is in front. The messages leave the log. Their
          numbers are used again for the next messages, so no caller may have stored them. A message
          without a readable record gets a deadline that has passed, for a rollback. The lease ends
          with the last message of the query. The first write needs no memory. A second run
          continues.
]]
--- @keys slot store prepare failures records query querylog queries
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/slot_fields"
--- @include "lib/query"
--- @include "lib/records/place_in_record"
--- @include "lib/writes"
local now = clock(ARGV[1])
check_names(ARGV[2], ARGV[3])
local after = whole_number(ARGV[6], 0, NUMBER_MOST, 'after')
local limit = whole_number(ARGV[7], 1, MOST, 'limit')
local fields = read_return_fields()
if not fields[CREATED] then
  fail('GONE', slot)
end
local state = read_query()
local _, tail, expired_to = log_range(state, 0)
local other_ms, other = other_owner(state, ARGV[3], now)
if other then
  return { 0, tail, 0, other_ms, other }
end
local low = math.max(after, expired_to, tonumber(state[SETTLED] or 0))
if low >= tail or tonumber(state[READ] or 0) > after then
  return { 0, tail, 0 }
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', store)
redis.call('HLEN', failures)
redis.call('HLEN', records)
redis.call('ZCARD', queries)
local log_ids = redis.call('LRANGE', querylog, -math.min(limit, tail - low), -1)
local scores, bytes, from = redis.call('ZMSCORE', prepare, unpack(log_ids)), 0, #log_ids + 1
local ids, receipts, places, unplaced = {}, {}, {}, {}

-- Add a message to the lists, the newest first. Return the size of its record.
local function add_message(id, receipt)
  local record = redis.call('HGET', records, id)
  local place = place_in_record(record)
  if place then
    local n = #ids + 1
    ids[n], receipts[n], places[n] = id, receipt, place
  else
    local rolled_back = ROLLED_BACK_END * 1000 + receipt % 1000
    unplaced[#unplaced + 1], unplaced[#unplaced + 2] = rolled_back, id
  end
  return record and #record or 0
end

-- Reverse the messages, so that the oldest is the first.
local function reverse()
  local given = #ids
  for m = 1, math.floor(given / 2) do
    local n = given + 1 - m
    ids[m], ids[n] = ids[n], ids[m]
    receipts[m], receipts[n] = receipts[n], receipts[m]
    places[m], places[n] = places[n], places[m]
  end
end

while from > 1 and bytes < READ_BYTES do
  from = from - 1
  local receipt = tonumber(scores[from])
  if receipt and receipt >= QUERY_DEADLINE * 1000 then
    bytes = bytes + add_message(log_ids[from], receipt)
  end
end
reverse()
local count, given = #log_ids - from + 1, #ids
allow_oom(prepare)
if #unplaced > 0 then
  redis.call('ZADD', prepare, 'XX', unpack(unplaced))
end
--- @include "lib/settle/release_deliveries"
if given > 0 then
  local released = { ids = ids, receipts = receipts, places = places }
  release_deliveries(released, fields, 0, now)
end
redis.call('LTRIM', querylog, 0, -count - 1)
redis.call('HSET', query, 'tail', tail - count)
if tail - count == expired_to then
  redis.call('ZREM', queries, ARGV[2])
  set_expiry()
end
if given > 0 then
  signal_given_back(fields, false, ARGV[4], ARGV[5], now)
end
return { given, tail - count, tail - count > low and 1 or 0 }
