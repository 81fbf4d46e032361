--[[
rollback: take back leases whose deadline has passed. Each costs a retry, as a nack does, and goes where a
nack would put it.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  message id -> score
KEYS[3]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   records        hash  message id -> record
KEYS[5]   DeadQueue      zset  message id -> time of death, epoch ms
KEYS[6]   failures       hash  message id -> what it failed of
KEYS[7]   audit          zset  numbers of messages that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, told to those it wakes
ARGV[4]   limit                1 to 1000
Returns   {taken back for a retry, dead, 1 if more are waiting}
Cost      O(n log L), n = leases taken back, L = members of the slot. In a slot in order also reading their
          records
Atomic    A lease goes back once, whoever finds it first. The first write frees memory. Run twice, the
          second run finds what the first one left.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/score"
--- @include "lib/timed"
--- @include "lib/wake"
--- @include "lib/failure"
--- @include "lib/retry"
--- @include "lib/freed"
--- @include "lib/in_order"
--- @include "lib/home"
local slot, store, prepare, failures = KEYS[1], KEYS[2], KEYS[3], KEYS[6]
local now, now_us = clock(ARGV[1])
local limit = whole(ARGV[4], 1, 1000, 'limit')
local s = redis.call('HMGET', slot, 'created', 'max_retries', 'retry', 'jitter', 'waiting', 'dead_retention_ms',
  'ordered', 'blocked', 'audited')
if not s[1] then
  fail('GONE', slot)
end
-- Every receipt of a deadline that has passed is below the first one of the next second.
local lapsed = redis.call('ZRANGEBYSCORE', prepare, '-inf',
  '(' .. string.format('%.0f', (math.floor(now / 1000) + 1) * 1000), 'WITHSCORES', 'LIMIT', 0, limit)
redis.call('ZCARD', store)
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', failures)
local audit = s[9] and KEYS[7]
if audit then
  redis.call('ZCARD', audit)
end
if #lapsed == 0 then
  return { 0, 0, 0 }
end
local ids, lefts, receipts = {}, {}, {}
for i = 1, #lapsed, 2 do
  ids[#ids + 1] = lapsed[i]
  receipts[#ids] = tonumber(lapsed[i + 1])
  lefts[#ids] = math.floor(receipts[#ids] % 1000)
end
local told = redis.call('HMGET', failures, unpack(ids))
local max_retries, dead = tonumber(s[2]), 0
local in_order = s[7] and places_of(slot, s[7])
math.randomseed(now_us % 2147483647)
redis.call('ZREM', prepare, unpack(ids))
for i = 1, #ids do
  local left = lefts[i]
  local made, last = max_retries - left + 1, told[i] and string.sub(told[i], 4) or ''
  if left == 0 then
    dead = dead + 1
    bury(slot, KEYS[5], KEYS[4], failures, audit, ids[i], now, made, 'l', last, tonumber(s[6]))
  else
    local pause = ladder_wait(s[3], tonumber(s[4]), made)
    local place = in_order
      and failed_place(in_order, KEYS[4], ids[i], receipts[i], pause > 0 and now + pause or 0)
    give_back(slot, store, failures, ids[i], now, left, made, pause, 'l', last, place)
  end
end
if in_order then
  keep_places(slot, in_order)
end
redis.call('HINCRBY', slot, 'rolled_back', #ids)
if freed(slot, prepare, s[8], now) or awaited(s[5], now) then
  wake(slot, ARGV[2], ARGV[3])
end
return { #ids - dead, dead, #ids == limit and 1 or 0 }
