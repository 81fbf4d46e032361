--[[
tidy: drop dead letters past the topic's retention, those in the trash whose time has come, settled ids past its dedup
window, answers to callers that were silent for minutes, full buckets of a limit for each key, and old notes of messages that went
to another topic. Let groups go on that wait for messages which somebody deleted by hand.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   records        hash  member -> record
KEYS[3]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[4]   failures       hash  member -> failure entry
KEYS[5]   settled even   set   members settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   audit          zset  open numbers of audited messages
KEYS[8]   large bodies   hash  member and 8 bytes of the record -> body
KEYS[9]   trash          zset  member -> when it goes for good, epoch ms
KEYS[10]  deaths         hash  member of the trash -> its time of death, epoch ms
KEYS[11]  rates          zset  key of a limit -> when its bucket will be full, epoch ms
KEYS[12]  arrivals       zset  what became of messages that went from one topic to another (lib/arrivals)
KEYS[13]  StoreQueue     zset  member -> score
KEYS[14]  PrepareQueue   zset  member -> receipt
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000 dead letters, and as many buckets and notes of each kind
Returns   {how many dead letters were dropped, also from the trash; 1 if the limit left something to drop, else 0}
Cost      O(n log L), n = limit, L = messages of the slot; the entries of about 100 groups are read, in turn. Redis frees
          the ids in another thread
Atomic    Types are checked before the first write, and no write needs memory. A second run goes on.
]]
--- @include "lib/arrivals"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/dead_letters"
--- @include "lib/key_limits"
--- @include "lib/replay"
--- @include "lib/settled"
--- @include "lib/trash"
--- @include "lib/writes"
local slot, records, dead, failures, even, odd = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 1, MOST, 'limit')
local created, dead_retention_ms, dedup_ms, settled_turn, audited, chunk, grouped = unpack(redis.call('HMGET', slot,
  'created', 'dead_retention_ms', 'dedup_ms', 'settled_turn', 'audited', 'chunk', 'groups'))
if not created then
  fail('GONE', slot)
end
redis.call('HLEN', records)
redis.call('ZCARD', dead)
redis.call('HLEN', failures)
redis.call('SCARD', even)
redis.call('SCARD', odd)
redis.call('ZCARD', KEYS[7])
redis.call('HLEN', KEYS[8])
redis.call('ZCARD', KEYS[9])
redis.call('HLEN', KEYS[10])
redis.call('ZCARD', KEYS[11])
redis.call('ZCARD', KEYS[12])
redis.call('ZCARD', KEYS[13])
redis.call('ZCARD', KEYS[14])
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
allow_oom(dead) -- the sweep of a slot with many sessions may begin with a field that is added
if last_turn then
  local forgotten = forgotten_sets(even, odd, window, last_turn, now)
  if forgotten then
    redis.call('UNLINK', unpack(forgotten))
  end
end
sweep_sessions(slot, now, 100)
local more = forget_full_buckets(KEYS[11], now, limit)
more = forget_arrivals(KEYS[12], now, limit) or more
if grouped then
  --- @include "lib/lost_members"
  free_groups(slot, KEYS[13], KEYS[14], grouped)
end
local audit = audited and KEYS[7]
local dropped = empty_trash(slot, KEYS[9], KEYS[10], records, KEYS[8], failures, audit, tonumber(chunk), now, limit)
local retention = tonumber(dead_retention_ms)
if retention > 0 and dropped < limit then
  dropped = dropped
    + drop_old_dead(slot, dead, records, KEYS[8], failures, audit, now - retention, now, limit - dropped)
end
return { dropped, (more or dropped == limit) and 1 or 0 }
