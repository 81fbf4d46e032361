--[[
get: read one message, whichever queue it is in. Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> receipt
KEYS[4]   records        hash  member -> record
KEYS[5]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[6]   failures       hash  member -> failure entry
KEYS[7]   leases         zset  number of a shared lease -> its end, epoch ms
KEYS[8]   trash          zset  member -> when it goes for good, epoch ms
ARGV[1]   member               13 bytes: the id without slot and check
Returns   {store | prepare | dead | trash | gone, score as text, record or '', failure or '', acceptance number of the newest,
          end of its shared lease in epoch ms or ''}
Cost      O(log L + size of the record)
Atomic    Reads only.
]]
--- @include "lib/check"
--- @include "lib/shared_leases"
local id = ARGV[1]
local s = redis.call('HMGET', KEYS[1], 'created', 'accepted')
if not s[1] then
  fail('GONE', KEYS[1])
end
redis.call('ZCARD', KEYS[7])
local queue, score = 'store', redis.call('ZSCORE', KEYS[2], id)
if not score then
  queue, score = 'prepare', redis.call('ZSCORE', KEYS[3], id)
end
if not score then
  queue, score = 'dead', redis.call('ZSCORE', KEYS[5], id)
end
if not score then
  queue, score = 'trash', redis.call('ZSCORE', KEYS[8], id)
end
if not score then
  return { 'gone', '', '', '', 0, '' }
end
local record = redis.call('HGET', KEYS[4], id) or ''
local lease_end = queue == 'prepare' and shared_end(KEYS[7], tonumber(score)) or ''
return { queue, string.format('%.17g', tonumber(score)), record, redis.call('HGET', KEYS[6], id) or '', tonumber(s[2] or 0),
  lease_end }
