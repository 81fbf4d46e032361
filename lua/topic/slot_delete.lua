--[[
slot_delete: delete a slot of a topic if it has no more messages than the caller allows; or only
count its messages.

ARGV[1]   created              the topic's stamp
ARGV[2]   most           ''    only count; or the number of messages that may be deleted with it
Returns   {1 deleted | 0 not deleted: it has more messages, or the call only counts | -1 not
          deleted: it has a newer stamp | -2 not deleted: bodies in an object store belong to it;
          number of messages waiting, in flight, dead}
Cost      O(1): Redis frees large keys in another thread.
Atomic    The slot is deleted as a whole or not changed. Letters in its trash are not counted. Its
          pending entries count as waiting messages. Types are checked first. A slot that has had
          offloaded bodies is deleted only when it has no messages, also none in the trash or in the
          history, and no tombstones (lib/records/large_bodies). Otherwise their objects would stay
          in the store. Works while Redis is at maxmemory. A second run finds nothing.
]]
--- @keys slot store prepare records dead failures merge audit settled0 settled1 queries bodies leases rates trash deaths arrivals pending targets results keeping waits acked ackedparts
--- @include "lib/check"
local created = whole_number(ARGV[1], 0, NUMBER_MOST, 'created')
local most = ARGV[2] ~= '' and whole_number(ARGV[2], 0, EXACT_MOST, 'most')
local stamp, offloaded, released =
  unpack(redis.call('HMGET', slot, 'created', 'offloaded', 'released'))
local waiting = redis.call('ZCARD', store) + redis.call('ZCARD', pending)
local in_flight = redis.call('ZCARD', prepare)
local dead_letters = redis.call('ZCARD', dead)
local stored = redis.call('HLEN', records)
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', failures)
redis.call('HLEN', merge)
redis.call('ZCARD', audit)
redis.call('SCARD', settled0)
redis.call('SCARD', settled1)
redis.call('ZCARD', queries)
redis.call('HLEN', bodies)
redis.call('ZCARD', leases)
redis.call('ZCARD', rates)
redis.call('ZCARD', trash)
redis.call('HLEN', deaths)
redis.call('ZCARD', arrivals)
redis.call('ZCARD', targets)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
redis.call('ZCARD', waits)
local kept = redis.call('XLEN', acked)
-- A key of a wrong type stops the script here.
redis.call('LLEN', ackedparts)
if stamp and tonumber(stamp) > created then
  return { -1, waiting, in_flight, dead_letters }
end
if offloaded and (stored + kept > 0 or tonumber(offloaded) > tonumber(released or 0)) then
  return { -2, waiting, in_flight, dead_letters }
end
if not most or waiting + in_flight + dead_letters > most then
  return { 0, waiting, in_flight, dead_letters }
end
redis.call('UNLINK', slot, store, prepare, records, dead, failures, merge, audit, settled0,
  settled1, queries, bodies, leases, rates, trash, deaths, arrivals, pending, targets,
  results, keeping, waits, acked, ackedparts)
return { 1, waiting, in_flight, dead_letters }
