--[[
stats: count the messages that a slot holds and has handled. Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> receipt
KEYS[4]   records        hash  member -> record
KEYS[5]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[6]   merge index    hash  merge key -> member and when it opened
KEYS[7]   settled even   set   members settled in even turns of the dedup window
KEYS[8]   settled odd    set   the same for odd turns
ARGV[1]   now_us         ''    or a test's time
Returns   retries, priority, due, later, in flight, dead, records, merge windows, ids remembered, ms that the
          first due message is late, how many waiting messages a pause or the limit holds back, since when the slot is paused (epoch
          ms, or 0), then the counters accepted, merged, delivered, settled, returned (failed
          deliveries that went back at once), rolled back, buried (dead letters), redriven, cancelled, expired, dropped,
          purged, dead letters dropped; last the server's time, epoch ms
Cost      O(log L)
Atomic    Reads only: one moment of one slot.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/limits"
--- @include "lib/score_ranges"
--- @include "lib/record"
local slot, store = KEYS[1], KEYS[2]
local now = clock(ARGV[1])
local past = string.format('%.0f', now + 1)
local s = redis.call('HMGET', slot, 'created', 'accepted', 'merged', 'delivered', 'settled', 'returned', 'rolled_back',
  'buried', 'redriven', 'cancelled', 'expired', 'dropped', 'purged', 'dead_dropped',
  'paused', 'limit')
if not s[1] then
  fail('GONE', slot)
end
local first = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, '(' .. past, 'WITHSCORES', 'LIMIT', 0, 1)
local due = first[2] and math.floor(tonumber(first[2])) or now
if due < TIMED_MIN then -- it was handed back: its record has the time
  local record = redis.call('HGET', KEYS[4], first[1])
  due = record and #record >= 14 and read48(record, 9) or now
end
local reply = {
  redis.call('ZCOUNT', store, '-inf', '(' .. PRIORITY_MIN),
  redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END),
  redis.call('ZCOUNT', store, PRIORITY_END, '(' .. past),
  redis.call('ZCOUNT', store, past, '+inf'),
  redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[5]),
  redis.call('HLEN', KEYS[4]),
  redis.call('HLEN', KEYS[6]),
  redis.call('SCARD', KEYS[7]) + redis.call('SCARD', KEYS[8]),
  now - due,
  0,
  tonumber(s[15] or 0),
}
if s[15] or s[16] then
  local room = s[15] and 0 or room_in(s[16], redis.call('HGET', slot, 'bucket'), reply[5], now)
  reply[11] = math.max(0, reply[1] + reply[2] + reply[3] - room)
end
for i = 2, 14 do
  reply[#reply + 1] = tonumber(s[i] or 0)
end
reply[#reply + 1] = now
return reply
