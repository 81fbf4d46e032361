--[[
locate: in which queue messages are, and how many messages their slot holds. Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> receipt
KEYS[4]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[5]   trash          zset  member -> when it goes for good, epoch ms
KEYS[6]   arrivals       zset  member -> when it went to another topic (lib/arrivals)
ARGV[1..] members              1 to 1000, each 13 bytes: the id without slot and check
Returns   {acceptance number of the newest, messages waiting, messages in flight, a letter for each id: s waiting,
          p in flight, d dead, also in the trash, m moved to another topic in the last 30 days, g gone}
Cost      O(k log L), k = members, L = messages of the slot. No record is read.
Atomic    Reads only: one moment of one slot, so a message that moves between its queues is in one of them.
]]
--- @include "lib/check"
--- @include "lib/member"
if #ARGV < 1 or #ARGV > 1000 then
  fail('ARG', 'ids')
end
local s = redis.call('HMGET', KEYS[1], 'created', 'accepted')
if not s[1] then
  fail('GONE', KEYS[1])
end
local store, prepare, dead = KEYS[2], KEYS[3], KEYS[4]
local waiting, in_flight, died = redis.call('ZCARD', store), redis.call('ZCARD', prepare), redis.call('ZCARD', dead)
local trashed, moved = redis.call('ZCARD', KEYS[5]), redis.call('ZCARD', KEYS[6])
local letters = {}
for i = 1, #ARGV do
  local id = ARGV[i]
  if #id ~= MEMBER then
    fail('ARG', 'id')
  end
  letters[i] = waiting > 0 and redis.call('ZSCORE', store, id) and 's'
    or in_flight > 0 and redis.call('ZSCORE', prepare, id) and 'p'
    or died > 0 and redis.call('ZSCORE', dead, id) and 'd'
    or trashed > 0 and redis.call('ZSCORE', KEYS[5], id) and 'd'
    or moved > 0 and redis.call('ZSCORE', KEYS[6], id) and 'm'
    or 'g'
end
return { tonumber(s[2] or 0), waiting, in_flight, table.concat(letters) }
