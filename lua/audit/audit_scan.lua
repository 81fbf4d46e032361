--[[
audit_scan: read a page of the numbered messages of a slot, whichever queue they are in. Changes nothing.

ARGV[1]   cursor               0 at first, then the cursor of the last answer; one of another server begins anew
ARGV[2]   limit                1 to 1000, about so many records a page
Returns   {cursor, 0 at the end; how many records were read; 1 if this is a first page, else 0; then for each numbered message
          its queue (s waiting, p in flight, d dead, also in the trash) and `<producer>.<number>`}. A record in no queue is
          no message.
Cost      O(limit), at most about 16 MiB of records
Atomic    Reads only. A message that is in the slot from the first page to the last is on one of them, however it moves
          between the queues meanwhile: a page is one of HSCAN, over a key that is passed. Some come twice. That holds on one
          server until it is restarted: another one has the records in another order, so a cursor names its server.
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
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
redis.call('ZCARD', dead)
redis.call('ZCARD', trash)
local page = redis.call('HSCAN', records, cursor, 'COUNT', limit)
local reply = { write_cursor(page[1], server), #page[2] / 2, cursor == '0' and 1 or 0 }
for i = 1, #page[2], 2 do
  local id = page[2][i]
  local producer, number = number_of(page[2][i + 1])
  if producer then
    local queue = redis.call('ZSCORE', store, id) and 's' or redis.call('ZSCORE', prepare, id) and 'p'
      or (redis.call('ZSCORE', dead, id) or redis.call('ZSCORE', trash, id)) and 'd'
    if queue then
      reply[#reply + 1] = queue .. string.format('%s.%.0f', producer, number)
    end
  end
end
return reply
