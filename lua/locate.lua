--[[
locate: in which queue messages are, and how many messages their slot holds. Changes nothing.

ARGV[1..] members              1 to 1000, each 13 bytes: the id without slot and check
Returns   {acceptance number of the newest, messages waiting, messages in flight, a letter for each id: s waiting,
          p in flight, d dead, also in the trash, m moved to another topic in the last 30 days, g gone}
Cost      O(k log L), k = members, L = messages of the slot. No record is read.
Atomic    Reads only: one moment of one slot, so a message that moves between its queues is in one of them.
]]
--- @keys slot store prepare dead trash arrivals
--- @include "lib/check"
--- @include "lib/member"
if #ARGV < 1 or #ARGV > 1000 then
  fail('ARG', 'ids')
end
local created, accepted = unpack(redis.call('HMGET', slot, 'created', 'accepted'))
if not created then
  fail('GONE', slot)
end
local waiting, in_flight, died = redis.call('ZCARD', store), redis.call('ZCARD', prepare), redis.call('ZCARD', dead)
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
