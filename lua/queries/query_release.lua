--[[
query_release: give back what a query took beyond a number and never handed out, as if it had not
been taken. `failures` and `records` are only read: whether a message has failed before, and its
group.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: which process runs the query
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6]   after                messages after this number
ARGV[7]   limit                1 to 1000
Returns   {how many were given back, the newest number then, 1 if more are to be given back, ms the
          other owner has left, the other owner}: the last two only where another owner runs the
          query, and nothing was done
Cost      O(n log L), n = limit, L = members of the slot; their records are read, up to 4 MiB
Atomic    Where a number after `after` was handed out, nothing is given back. Each message goes
          where `release` would put it, and it costs no retry; the newest come first, so that page
          by page the oldest stands in front. They leave the log, and their numbers are those of the
          next messages: no caller may have noted them. A message without a readable record gets a
          deadline that has passed, for `rollback`. With the last message that the query holds its
          lease ends. The first write needs no memory. A second run goes on.
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
local left, other = other_owner(state, ARGV[3], now)
if other then
  return { 0, tail, 0, left, other }
end
local low = math.max(after, expired_to, tonumber(state[SETTLED] or 0))
if low >= tail or tonumber(state[READ] or 0) > after then
  return { 0, tail, 0 }
end
redis.call('ZCARD', store)
redis.call('HLEN', failures)
redis.call('HLEN', records)
redis.call('ZCARD', queries)
local page = redis.call('LRANGE', querylog, -math.min(limit, tail - low), -1)
local scores, bytes, from = redis.call('ZMSCORE', prepare, unpack(page)), 0, #page + 1
local held_ids, receipts, places, unplaced = {}, {}, {}, {}
while from > 1 and bytes < READ_BYTES do
  from = from - 1
  local receipt = tonumber(scores[from] or nil)
  if receipt and receipt >= FAR * 1000 then
    local record = redis.call('HGET', records, page[from])
    local place = place_in_record(record)
    bytes = bytes + (record and #record or 0)
    if place then
      local n = #held_ids + 1
      held_ids[n], receipts[n], places[n] = page[from], receipt, place
    else
      unplaced[#unplaced + 1], unplaced[#unplaced + 2] = 1000 + receipt % 1000, page[from]
    end
  end
end
local count, given = #page - from + 1, #held_ids
for m = 1, math.floor(given / 2) do -- from here on the oldest comes first
  local n = given + 1 - m
  held_ids[m], held_ids[n] = held_ids[n], held_ids[m]
  receipts[m], receipts[n] = receipts[n], receipts[m]
  places[m], places[n] = places[n], places[m]
end
allow_oom(prepare)
if #unplaced > 0 then
  redis.call('ZADD', prepare, 'XX', unpack(unplaced))
end
--- @include "lib/settle/release_deliveries"
if given > 0 then
  local released = { ids = held_ids, receipts = receipts, places = places }
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
