--[[
get: read one message, whichever queue it is in. Changes nothing.

ARGV[1]   member               13 bytes: the id without slot and checksum
Returns   {store | prepare | dead | trash | gone, score as text, record or '', failure entry or '',
          acceptance number of the slot's newest message, end of its shared lease in epoch ms or '',
          its steps (lib/records/steps) or '', its wait for an event (lib/events/waits) or ''}
Cost      O(log L + size of the record)
Atomic    Reads only.
]]
--- @keys slot store prepare records dead failures leases trash bodies
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
local id = ARGV[1]
local created, accepted, steps, waited =
  unpack(redis.call('HMGET', slot, 'created', 'accepted', 'steps', 'waited'))
if not created then
  fail('GONE', slot)
end
-- A key of a wrong type stops the script here.
redis.call('ZCARD', leases)
redis.call('HLEN', bodies)
local queue, score = 'store', redis.call('ZSCORE', store, id)
if not score then
  queue, score = 'prepare', redis.call('ZSCORE', prepare, id)
end
if not score then
  queue, score = 'dead', redis.call('ZSCORE', dead, id)
end
if not score then
  queue, score = 'trash', redis.call('ZSCORE', trash, id)
end
if not score then
  return { 'gone', '', '', '', 0, '', '', '' }
end
local record = redis.call('HGET', records, id) or ''
local failure = redis.call('HGET', failures, id) or ''
local exact_score = string.format('%.17g', tonumber(score))
local lease_end = queue == 'prepare' and shared_end(tonumber(score)) or ''
local entry = steps and redis.call('HGET', bodies, id .. 's') or ''
local wait = waited and redis.call('HGET', bodies, id .. 'w') or ''
return { queue, exact_score, record, failure, tonumber(accepted or 0), lease_end, entry, wait }
