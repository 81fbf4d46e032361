--[[
get: read one message, whichever queue it is in. Changes nothing.

ARGV[1]   member               13 bytes: the id without slot and check
Returns   {store | prepare | dead | trash | gone, score as text, record or '', failure or '', acceptance number of the newest,
          end of its shared lease in epoch ms or ''}
Cost      O(log L + size of the record)
Atomic    Reads only.
]]
--- @keys slot store prepare records dead failures leases trash
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
local id = ARGV[1]
local created, accepted = unpack(redis.call('HMGET', slot, 'created', 'accepted'))
if not created then
  fail('GONE', slot)
end
redis.call('ZCARD', leases)
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
  return { 'gone', '', '', '', 0, '' }
end
local record = redis.call('HGET', records, id) or ''
local lease_end = queue == 'prepare' and shared_end(tonumber(score)) or ''
return { queue, string.format('%.17g', tonumber(score)), record, redis.call('HGET', failures, id) or '', tonumber(accepted or 0),
  lease_end }
