--[[
query_read: hand out messages that a query holds. Notes the newest number handed out, and changes nothing else.

KEYS[1]   slot           hash  only checked to exist
KEYS[2]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  member -> record
KEYS[4]   failures       hash  member -> failure entry
KEYS[5]   query          hash  tail: the newest number in the log; read: the newest that was handed out
KEYS[6]   query log      list  members that the query holds; the last one has the number `tail`
ARGV[1]   after                numbers after this one
ARGV[2]   upto                 up to this one
ARGV[3]   limit                1 to 1000
Returns   {numbers, members, receipts as text ('' where the PrepareQueue no longer has the message), records}, in the order
          of their numbers; fewer than the limit where the range is at its end, or 4 MiB are full. Receipts are left
          out where nothing in the slot has ever failed: all messages have every retry then
Cost      O(n / 500 + k), n = messages that the query holds, k = limit
Atomic    One moment of one slot. The only write is that of `read`, and needs no memory. A second run does the same.
]]
--- @include "lib/check"
--- @include "lib/writes"
--- @include "lib/query"
local prepare, records, failures, query, log = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local after, upto = whole_number(ARGV[1], 0, NUMBER_MOST, 'after'), whole_number(ARGV[2], 0, NUMBER_MOST, 'upto')
local limit = whole_number(ARGV[3], 1, MOST, 'limit')
if redis.call('HEXISTS', KEYS[1], 'created') == 0 then
  fail('GONE', KEYS[1])
end
local numbers, ids, page, receipts = {}, {}, {}, {}
local first, tail, expired_to = log_range(query, log, 0)
local from, to = math.max(after, expired_to), math.min(upto, tail)
if from < to then
  ids = redis.call('LRANGE', log, from - first, math.min(to - first, from - first + limit) - 1)
end
for i = 1, #ids do
  numbers[i] = from + i
end
redis.call('HLEN', records)
redis.call('ZCARD', prepare)
local any_failed = redis.call('HLEN', failures) > 0
if #ids == 0 then
  return { {}, {}, {}, {} }
end
local last, bytes = #ids, 0
page = redis.call('HMGET', records, unpack(ids))
for i = 1, #ids do
  bytes = bytes + (page[i] and #page[i] or 0)
  page[i] = page[i] or ''
  if bytes >= READ_BYTES then
    last = i
    break
  end
end
if last < #ids then
  numbers, ids, page = { unpack(numbers, 1, last) }, { unpack(ids, 1, last) }, { unpack(page, 1, last) }
end
if any_failed then
  receipts = redis.call('ZMSCORE', prepare, unpack(ids))
  for i = 1, #ids do
    receipts[i] = receipts[i] or ''
  end
end
if numbers[last] > tonumber(redis.call('HGET', query, 'read') or 0) then
  allow_oom(prepare)
  redis.call('HSET', query, 'read', numbers[last])
end
return { numbers, ids, receipts, page }
