--[[
slot_delete: delete a slot of a topic, with its messages if they are no more than the caller allows; or only count them.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> receipt
KEYS[4]   records        hash  member -> record
KEYS[5]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[6]   failures       hash  member -> failure entry
KEYS[7]   merge index    hash  merge key -> member and when it opened
KEYS[8]   audit          zset  open numbers of audited messages
KEYS[9]   settled even   set   members settled in even turns of the dedup window
KEYS[10]  settled odd    set   the same for odd turns
KEYS[11]  queries        zset  run of a query -> end of its lease, epoch ms
KEYS[12]  large bodies   hash  member and 8 bytes of the record -> body
KEYS[13]  leases         zset  number of a shared lease -> its end, epoch ms
KEYS[14]  rates          zset  key of a limit -> when its bucket will be full, epoch ms
KEYS[15]  trash          zset  member -> when it goes for good, epoch ms
KEYS[16]  deaths         hash  member of the trash -> its time of death, epoch ms
KEYS[17]  arrivals       zset  member and token of dead letters of other topics -> what became of them
ARGV[1]   created              the topic's stamp
ARGV[2]   most           ''    only count; or the number of messages that may be deleted with the slot
Returns   {1 deleted | 0 left: it holds more, or the call only counts | -1 left: it has a newer stamp | -2 left: bodies in a
          store belong to it, waiting, in flight, dead}
Cost      O(1): Redis frees large keys in another thread
Atomic    The slot is deleted as a whole, or stays as it is; what is in its trash is not counted. Types are checked first. A slot
          that has had offloaded bodies is deleted when it has no message any more, also none in the trash, and no tombstone
          (lib/large_bodies): else their objects would stay in the store. Works while Redis is at maxmemory. A second run finds
          nothing.
]]
--- @include "lib/check"
local created = whole_number(ARGV[1], 0, NUMBER_MOST, 'created')
local most = ARGV[2] ~= '' and whole_number(ARGV[2], 0, EXACT_MOST, 'most')
local stamp, offloaded, released = unpack(redis.call('HMGET', KEYS[1], 'created', 'offloaded', 'released'))
local waiting, in_flight, dead = redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[5])
local stored = redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('ZCARD', KEYS[8])
redis.call('SCARD', KEYS[9])
redis.call('SCARD', KEYS[10])
redis.call('ZCARD', KEYS[11])
redis.call('HLEN', KEYS[12])
redis.call('ZCARD', KEYS[13])
redis.call('ZCARD', KEYS[14])
redis.call('ZCARD', KEYS[15])
redis.call('HLEN', KEYS[16])
redis.call('ZCARD', KEYS[17])
if stamp and tonumber(stamp) > created then
  return { -1, waiting, in_flight, dead }
end
if offloaded and (stored > 0 or tonumber(offloaded) > tonumber(released or 0)) then
  return { -2, waiting, in_flight, dead }
end
if not most or waiting + in_flight + dead > most then
  return { 0, waiting, in_flight, dead }
end
redis.call('UNLINK', unpack(KEYS))
return { 1, waiting, in_flight, dead }
