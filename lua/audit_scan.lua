--[[
audit_scan: read a page of the numbered messages of a slot, whichever queue they are in. Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> receipt
KEYS[4]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[5]   records        hash  member -> record
KEYS[6]   trash          zset  member -> when it goes for good, epoch ms
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
--- @include "lib/check"
--- @include "lib/audit"
--- @include "lib/scan_cursor"
local s = redis.call('HMGET', KEYS[1], 'created', 'chunk')
if not s[1] then
  fail('GONE', KEYS[1])
end
local limit = math.min(whole_number(ARGV[2], 1, MOST, 'limit'), 4 * tonumber(s[2]))
local cursor, server = read_cursor(ARGV[1])
redis.call('ZCARD', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('ZCARD', KEYS[6])
local page = redis.call('HSCAN', KEYS[5], cursor, 'COUNT', limit)
local reply = { write_cursor(page[1], server), #page[2] / 2, cursor == '0' and 1 or 0 }
for i = 1, #page[2], 2 do
  local id = page[2][i]
  local producer, number = number_of(page[2][i + 1])
  if producer then
    local queue = redis.call('ZSCORE', KEYS[2], id) and 's' or redis.call('ZSCORE', KEYS[3], id) and 'p'
      or (redis.call('ZSCORE', KEYS[4], id) or redis.call('ZSCORE', KEYS[6], id)) and 'd'
    if queue then
      reply[#reply + 1] = queue .. string.format('%s.%.0f', producer, number)
    end
  end
end
return reply
