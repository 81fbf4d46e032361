--[[
next_ready: when do slots next have work? Consumers ask before they sleep.

KEYS      three for each slot: slot (hash), StoreQueue (zset), PrepareQueue (zset). One call may ask for many slots
          that live on one server; on a Cluster it asks for one slot.
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   waits                1: the caller sleeps now, and wants to be woken for at least 1.5 s
ARGV[3..] created              the topic's stamp as the caller opened it; another stamp is an error. Or a stamp for each slot:
                               then -2 stands for a slot of another stamp, and the others are answered
Returns   for each slot, us until it has work: 0 now, -1 never as things stand. A slot in order has none while something
          is in flight, until that lease ends, nor before its hold. A paused slot,
          and one with as much in flight as its limit allows, has none but leases that end.
Cost      O(s log L), s = slots, at most 1024
Atomic    Changes nothing but the time until which somebody is waiting (`waiting`, or `blocked` where it waits for
          others to settle), and that at most every 1.5 s.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/in_order"
--- @include "lib/limits"
--- @include "lib/wake"
local now, now_us = clock(ARGV[1])
local reply, asleep = {}, {}
if #KEYS % 3 ~= 0 or #KEYS > 3072 then
  fail('ARG', 'keys')
end
local stamps = #ARGV - 2
if stamps ~= 1 and stamps ~= #KEYS / 3 then
  fail('ARG', 'created')
end
for i = 1, #KEYS, 3 do
  local s = redis.call('HMGET', KEYS[i], 'created', 'waiting', 'blocked', 'ordered', 'leases_until', 'paused', 'limit')
  local created = stamps == 1 and ARGV[3] or ARGV[3 + (i - 1) / 3]
  if s[1] ~= created and stamps == 1 then
    fail(s[1] and 'ANEW' or 'GONE', KEYS[i])
  end
  local wait, field = -2, nil
  if s[1] == created then
    local hold = s[4] and hold_until(KEYS[i], KEYS[i + 1], s[4], now)
    local gate = s[6] and { at = math.huge } or nil
    if s[7] and not gate then
      local _
      _, gate = room_in(s[7], redis.call('HGET', KEYS[i], 'bucket'), redis.call('ZCARD', KEYS[i + 2]), now)
    end
    wait, field = next_ready_in(KEYS[i + 1], KEYS[i + 2], now_us, s[5], hold, gate)
    if wait ~= 0 and field and ARGV[2] == '1' and tonumber(s[field == 'waiting' and 2 or 3] or 0) < now + 1500 then
      asleep[#asleep + 1] = { i, field }
    end
  end
  reply[#reply + 1] = wait
end
for a = 1, #asleep do
  local i, field = unpack(asleep[a])
  note_sleeper(KEYS[i], KEYS[i + 1], field, now)
end
return reply
