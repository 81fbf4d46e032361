--[[
ack: settle deliveries for good.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  message id -> record
KEYS[4]   failures       hash  message id -> what it failed of
KEYS[5]   settled even   set   ids settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   replay         str   the last answer given to this lane
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               of this call in its lane
ARGV[3..] n message ids, then their n receipts (scores); n is at most 1000
Returns   a letter for each: 1 settled, 0 the lease is no longer the caller's
Cost      O(n log L), L = leases of the slot
Atomic    Only a member whose score equals the receipt is removed, so a stale ack changes nothing. The
          first write frees memory. Run twice with one number, it gives the first answer.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/settled"
--- @include "lib/held"
local slot, prepare = KEYS[1], KEYS[2]
local now = clock(ARGV[1])
local before = replayed(KEYS[7], ARGV[2])
if before then
  return before
end
local s = redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn')
if not s[1] then
  fail('GONE', slot)
end
local mine, letters = held(prepare, 3, (#ARGV - 2) / 2)
redis.call('HLEN', KEYS[3])
local failed = redis.call('HLEN', KEYS[4])
local window = tonumber(s[2])
if window > 0 then
  redis.call('SCARD', KEYS[5])
  redis.call('SCARD', KEYS[6])
end
if #mine > 0 then
  redis.call('ZREM', prepare, unpack(mine))
  redis.call('HDEL', KEYS[3], unpack(mine))
  if failed > 0 then
    redis.call('HDEL', KEYS[4], unpack(mine))
  end
  redis.call('HINCRBY', slot, 'settled', #mine)
  if window > 0 then
    settled_remember(slot, KEYS[5], KEYS[6], window, tonumber(s[3]), now, mine)
  end
  remember(KEYS[7], ARGV[2], letters)
end
return letters
