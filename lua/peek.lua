--[[
peek: read a page of one queue of a slot. Changes nothing. `queue` is the StoreQueue, the
PrepareQueue or the DeadQueue.

ARGV[1]   low                  smallest score, as for ZRANGEBYSCORE
ARGV[2]   high                 largest score
ARGV[3]   order                up or down
ARGV[4]   offset               how many messages to skip
ARGV[5]   limit                1 to 1000
ARGV[6]   records              1: with records; 0: without
Returns   {acceptance number of the newest message, {member, score as text, member, ...}, {record or
          nil, ...}, {failure entry or nil, ...}, {end of its shared lease in epoch ms or '', ...}}.
          A list is empty if no message of the page has such a value. A page has at most 4 MiB of
          records and failure entries, so it may be short. An empty page is the end
Cost      O(log L + offset + limit)
Atomic    Reads only. A message that moves between two pages may be seen twice or not at all.
]]
--- @keys slot queue records failures leases
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
local created, accepted, chunk = unpack(redis.call('HMGET', slot, 'created', 'accepted', 'chunk'))
if not created then
  fail('GONE', slot)
end
local any_shared, any_failed = redis.call('ZCARD', leases) > 0, redis.call('HLEN', failures) > 0
local offset = whole_number(ARGV[4], 0, NUMBER_MOST, 'offset')
local limit = whole_number(ARGV[5], 1, MOST, 'limit')
local with_records = whole_number(ARGV[6], 0, 1, 'records') == 1
local low, high = ARGV[1], ARGV[2]
local page
if ARGV[3] == 'down' then
  page = redis.call('ZREVRANGEBYSCORE', queue, high, low, 'WITHSCORES', 'LIMIT', offset, limit)
else
  page = redis.call('ZRANGEBYSCORE', queue, low, high, 'WITHSCORES', 'LIMIT', offset, limit)
end
local members = {}
for i = 1, #page, 2 do
  members[#members + 1] = page[i]
end
local page_records, page_failures, ends = {}, {}, {}
local count, bytes, step, full = 0, 0, tonumber(chunk), false
while count < #members and not full do
  local from, to = count, math.min(#members, count + step)
  local batch = with_records and redis.call('HMGET', records, unpack(members, from + 1, to)) or {}
  local failed = any_failed and redis.call('HMGET', failures, unpack(members, from + 1, to)) or {}
  for i = 1, to - from do
    bytes = bytes + (batch[i] and #batch[i] or 0) + (failed[i] and #failed[i] or 0)
    if bytes > READ_BYTES and count > 0 then
      full = true
      break
    end
    count = from + i
    page_records[count], page_failures[count] = batch[i], failed[i]
  end
  -- Next, as many as fit if they are as large as the messages read so far.
  step = math.max(1, math.min(4 * chunk, math.floor((READ_BYTES - bytes) / bytes * to)))
end
for i = 1, any_shared and count or 0 do
  ends[i] = shared_end(tonumber(page[2 * i]))
end
page = full and { unpack(page, 1, 2 * count) } or page
return { tonumber(accepted or 0), page, page_records, page_failures, ends }
