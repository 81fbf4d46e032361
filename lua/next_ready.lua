--[[
next_ready: when do slots next have work? Consumers ask before they sleep. One call may ask for many slots that live on
one server; on a Cluster it asks for one slot.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   waits                1: the caller sleeps now, and wants to be woken for at least 200 s; or a credit (lib/wake/credits)
                               that it leaves in each slot if none has work: +<number> <channel>, or with * in its place,
                               limit (1 to 1000), lease_ms (1000 to 43 200 000), and for each slot the call: <session>
                               <number>; or =<channel>, where it has left them, to renew those that would end soon
ARGV[3..] created              the topic's stamp as the caller opened it; another stamp is an error. Or a stamp for each slot:
                               then -2 stands for a slot of another stamp, and the others are answered. With a credit:
                               the stamp, and 1 where an earlier copy of this call had no reply
Returns   for each slot, us until it has work: 0 now, -1 never as things stand. A slot in order has none while something
          is in flight, until that lease ends, nor before its hold. A paused slot,
          and one with as much in flight as its limit allows, has none but leases that end. Where the last take found
          messages of held keys alone, there is none until its note ends.
          With a credit, then for each slot the hand-overs for which it is good, 0: none stands there; for a call that is
          repeated, which removes the credits and leaves none, -1 less the hand-overs for which it was still good
Cost      O(s log L), s = slots; clients ask for 256 at most
Atomic    Changes nothing but the time until which somebody is waiting (`waiting`, or `blocked` where it waits for
          others to settle), and that at most every 100 s; and the credits. A look at credits that do not end soon writes nothing.
]]
--- @keys slot store prepare ...
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/take/in_order"
--- @include "lib/take/key_limits"
--- @include "lib/take/room_in"
--- @include "lib/wake/wake"
local now, now_us = clock(ARGV[1])
local reply, asleep, gives, stand, words = {}, {}, {}, {}, {}
if #all_keys % 3 ~= 0 or #all_keys > 3072 then
  fail('ARG', 'keys')
end
local again = #ARGV[2] > 1 and ARGV[4] == '1'
local stamps = again and 1 or #ARGV - 2
if stamps ~= 1 and stamps ~= #all_keys / 3 then
  fail('ARG', 'created')
end
local renewed, listeners, ends -- renewed: the channel of credits that stand
if #ARGV[2] > 1 then
  --- @include "lib/wake/credits"
  ends = credit_end(nil, now)
  if string.byte(ARGV[2], 1) == RENEWS then
    local _
    _, _, renewed = read_offer(ARGV[2])
    listeners = count_listeners(renewed)
    local stamp, credits = unpack(redis.call('HMGET', slot, 'created', 'credits'))
    if not again and stamp == ARGV[3] and listeners == 1
        and are_untouched(all_keys, credits or '', renewed, ends, now) then
      for n = 1, #all_keys / 3 do
        reply[n], reply[#all_keys / 3 + n] = -1, 1
      end
      return reply
    end
  else
    for word in string.gmatch(ARGV[2], '[^ ]+') do
      words[#words + 1] = word
    end
    read_offer(words[1] .. ' ' .. (words[2] or ''))
    whole_number(words[3] or '', 1, MOST, 'limit')
    whole_number(words[4] or '', LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
    if #words ~= 4 + 2 * #all_keys / 3 then
      fail('ARG', 'calls')
    end
  end
end
for i = 1, #all_keys, 3 do
  slot, store, prepare = all_keys[i], all_keys[i + 1], all_keys[i + 2]
  local stamp, waiting, blocked, ordered, leases_until, paused, limit, accepted, credits = unpack(redis.call('HMGET', slot,
    'created', 'waiting', 'blocked', 'ordered', 'leases_until', 'paused', 'limit', 'accepted', 'credits'))
  local created = stamps == 1 and ARGV[3] or ARGV[3 + (i - 1) / 3]
  if stamp ~= created and stamps == 1 then
    fail(stamp and 'ANEW' or 'GONE', slot)
  end
  stand[#reply + 1] = credits or ''
  local wait, field = -2, nil
  if stamp == created then
    local hold = ordered and hold_until(ordered, now)
    local gate = paused and { at = math.huge } or nil
    if limit and not gate then
      local _
      local bucket, held = unpack(redis.call('HMGET', slot, 'bucket', 'held'))
      local in_flight = redis.call('ZCARD', prepare)
      _, gate = room_in(limit, bucket, in_flight, now)
      gate = gate or held_gate(held, now, accepted, in_flight)
    end
    wait, field = next_ready_in(now_us, leases_until, hold, gate)
    gives[#reply + 1] = wait ~= 0 and field == 'waiting' and not hold and not gate
    local noted = field == 'waiting' and waiting or field == 'blocked' and blocked
    if wait ~= 0 and field and ARGV[2] ~= '0' and is_to_note(noted, now) then
      asleep[#asleep + 1] = { i, field }
    end
    if wait ~= 0 and ARGV[2] ~= '0' and gate and gate.sends_wake and is_to_note(waiting, now) then
      asleep[#asleep + 1] = { i, 'waiting' }
    end
  end
  reply[#reply + 1] = wait
end
for a = 1, #asleep do
  local i, field = unpack(asleep[a])
  slot, store = all_keys[i], all_keys[i + 1]
  note_sleeper(field, now)
end
if #ARGV[2] > 1 then
  --- @include "lib/wake/credits"
  local slots, all_sleep = #reply, true
  for n = 1, slots do
    all_sleep = all_sleep and reply[n] ~= 0
  end
  for n = 1, slots do
    local i, good = 3 * n - 2, 0
    slot, store = all_keys[i], all_keys[i + 1]
    if again then
      good = -1 - remove_credit(renewed or words[2])
    elseif all_sleep and gives[n] then
      if renewed then
        good = renew_credit(stand[n], renewed, listeners, ends, now)
      else
        local call = words[3 + 2 * n] .. ' ' .. words[4 + 2 * n]
        good = keep_credit(words[1] .. ' ' .. words[2], ends, words[3], words[4], call, now)
      end
    end
    reply[slots + n] = good
  end
end
return reply
