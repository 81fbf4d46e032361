--[[
locate: find the queue of each message, and count the messages of the slot. Changes nothing.

ARGV[1..] members              1 to 1000, each 13 bytes: the id without slot and checksum
Returns   {acceptance number of the newest message, messages waiting, messages in flight, a letter
          for each id}: s waiting, p in flight, d dead (also in the trash), m moved to another topic
          in the last 30 days, g gone
Cost      O(k log L), k = members, L = messages of the slot. No record is read.
Atomic    Reads only. It sees one moment of the slot, so a message is in exactly one queue.
]]
--- @keys slot store prepare dead trash arrivals
--- @include "lib/check"
--- @include "lib/member"
if #ARGV < 1 or #ARGV > MOST then
  fail('ARG', 'ids')
end
local created, accepted = unpack(redis.call('HMGET', slot, 'created', 'accepted'))
if not created then
  fail('GONE', slot)
end
local waiting, in_flight = redis.call('ZCARD', store), redis.call('ZCARD', prepare)
local died = redis.call('ZCARD', dead)
local trashed, moved = redis.call('ZCARD', trash), redis.call('ZCARD', arrivals)
local letters = {}
for i = 1, #ARGV do
  local id = ARGV[i]
  if #id ~= MEMBER then
    fail('ARG', 'id')
  end
  letters[i] = waiting > 0 and redis.call('ZSCORE', store, id) and 's'
    or in_flight > 0 and redis.call('ZSCORE', prepare, id) and 'p'
    or died > 0 and redis.call('ZSCORE', dead, id) and 'd'
    or trashed > 0 and redis.call('ZSCORE', trash, id) and 'd'
    or moved > 0 and redis.call('ZSCORE', arrivals, id) and 'm'
    or 'g'
end
return { tonumber(accepted or 0), waiting, in_flight, table.concat(letters) }
