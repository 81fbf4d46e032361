--[[
audit_scan: read a page of the numbered messages of a slot, in all queues. Changes nothing.

ARGV[1]   cursor               0 for the first page, or the cursor of the last answer. With a cursor
          of another server, the scan begins again.
ARGV[2]   limit                1 to 1000: approximate number of records in a page.
Returns   {cursor of the next page, 0 at the end; number of records read; 1 if this is a first page,
          else 0; then for each numbered message its queue and `<producer>.<number>`}. The queue is
          s waiting, p in flight, d dead or in the trash. A record in no queue is no message.
Cost      O(limit), at most about 16 MiB of records
Atomic    Reads only. A message that is in the slot from the first page to the last is on one of
          them, even if it moves between the queues: a page is one HSCAN of the records. A message
          may be on several pages. This is true for one server until it restarts. Another server has
          the records in another order, so a cursor names its server.
]]
--- @keys slot store prepare dead records trash
--- @include "lib/check"
--- @include "lib/audit"
--- @include "lib/scan_cursor"
local created, chunk = unpack(redis.call('HMGET', slot, 'created', 'chunk'))
if not created then
  fail('GONE', slot)
end
local limit = math.min(whole_number(ARGV[2], 1, MOST, 'limit'), 4 * tonumber(chunk))
local cursor, server = read_cursor(ARGV[1])
-- A key of a wrong type stops the script here.
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
redis.call('ZCARD', dead)
redis.call('ZCARD', trash)

-- Return the letter of the queue of a message, or nil if it is in no queue.
local function queue_of(id)
  if redis.call('ZSCORE', store, id) then
    return 's'
  end
  if redis.call('ZSCORE', prepare, id) then
    return 'p'
  end
  if redis.call('ZSCORE', dead, id) or redis.call('ZSCORE', trash, id) then
    return 'd'
  end
end

local page = redis.call('HSCAN', records, cursor, 'COUNT', limit)
local reply = { write_cursor(page[1], server), #page[2] / 2, cursor == '0' and 1 or 0 }
for i = 1, #page[2], 2 do
  local producer, number = number_of(page[2][i + 1])
  local letter = producer and queue_of(page[2][i])
  if letter then
    reply[#reply + 1] = letter .. string.format('%s.%.0f', producer, number)
  end
end
return reply
