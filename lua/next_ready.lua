--[[
next_ready: return when slots next have work. Consumers ask before they sleep. One call may ask for
many slots that are on one server; on a Cluster it asks for one slot.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   waits                0; or 1: the caller sleeps now, and wants to be woken for at least
                               200 s; or the offer of a credit for each slot (lib/wake/credits),
                               which is kept if no slot has work: +<number> <channel>, or with *
                               instead of +, limit (1 to 1000), lease_ms (1000 to 43 200 000), and
                               for each slot the call: <session> <number>; or =<channel>: renew the
                               caller's credits if they end soon
ARGV[3..] created              the topic's stamp as the caller opened it; another stamp is an error.
                               Or a stamp for each slot: then a slot with another stamp is answered
                               with -2, and the others as usual. With a credit: the stamp, and 1 if
                               an earlier copy of this call had no reply
Returns   for each slot, us until it has work: 0 now, -1 never as things are. A slot in order has
          no work while a delivery is in flight, until its lease ends, nor while the slot waits. A
          paused slot, and a slot whose limit in flight is reached, has only the ends of leases. If
          the last take found only messages whose keys are at their limit, there is no work until
          the end of its note.
          With a credit, a number for each slot follows: the hand-overs for which the credit is
          good, 0: no credit. A repeated call removes the credits and leaves none. Its
          number is -1 minus the hand-overs for which the credit was still good
Cost      O(s log L), s = slots; clients ask for 256 at most
Atomic    Changes only the time until which a consumer may be asleep (`waiting`, or `blocked` if it
          waits for others to settle), at most every 100 s; and the credits. A look at credits that
          do not end soon writes nothing.
]]
--- @keys slot store prepare ...
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/take/in_order"
--- @include "lib/take/key_limits"
--- @include "lib/take/room_in"
--- @include "lib/wake/next_ready_in"
--- @include "lib/wake/wake"
local now, now_us = clock(ARGV[1])
local slots, waits = #all_keys / 3, ARGV[2]
local may_sleep, offers_credits = waits ~= '0', #waits > 1 -- or renews credits
if slots % 1 > 0 or slots > SLOTS_MOST then
  fail('ARG', 'keys')
end
local is_repeated = offers_credits and ARGV[4] == '1'
local stamps = is_repeated and 1 or #ARGV - 2 -- number of stamps
if stamps ~= 1 and stamps ~= slots then
  fail('ARG', 'created')
end

-- Return the reply if no slot has work, and each credit stays as it is.
--- @inline
local function untouched_reply()
  local reply = {}
  for n = 1, slots do
    reply[n], reply[slots + n] = -1, 1
  end
  return reply
end

-- The offer of credits: `channel` and `ends`; `renews` and `listeners` for credits that the caller
-- has; else `text`, `limit`, `lease` and `words`, which end with the calls.
local offer
if offers_credits then
  --- @include "lib/wake/credits"
  local ends = credit_end(nil, now)
  if string.byte(waits, 1) == RENEWS then
    local channel = offered_channel(waits)
    local listeners = count_listeners(channel)
    offer = { renews = true, channel = channel, ends = ends, listeners = listeners }
    local stamp, credits = unpack(redis.call('HMGET', slot, 'created', 'credits'))
    if not is_repeated and stamp == ARGV[3] and listeners == 1
        and are_untouched(all_keys, credits or '', channel, ends, now) then
      return untouched_reply()
    end
  else
    local words = {}
    for word in string.gmatch(waits, '[^ ]+') do
      words[#words + 1] = word
    end
    local text = words[1] .. ' ' .. (words[2] or '')
    local channel = offered_channel(text)
    whole_number(words[3] or '', 1, MOST, 'limit')
    whole_number(words[4] or '', LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
    if #words ~= 4 + 2 * slots then
      fail('ARG', 'calls')
    end
    offer = {
      text = text, channel = channel, limit = words[3], lease = words[4],
      words = words, ends = ends,
    }
  end
end

-- Let the names of the keys mean the keys of the nth slot.
local function use_slot(n)
  slot, store, prepare = all_keys[3 * n - 2], all_keys[3 * n - 1], all_keys[3 * n]
end

local sleepers = {} -- slots, and fields where the caller is to be noted, in turn
local credits_of, takes_credit = {}, {} -- by slot: its credits, and whether it may get another

-- Return nil, or a gate that says when the slot gives messages again (see next_ready_in).
local function gate_of(paused, limit, accepted)
  if paused then
    return { at = math.huge }
  end
  if not limit then
    return nil
  end
  local bucket, held = unpack(redis.call('HMGET', slot, 'bucket', 'held'))
  local in_flight = redis.call('ZCARD', prepare)
  local _, gate = room_in(limit, bucket, in_flight, now)
  return gate or gate_of_note(held, now, accepted, in_flight)
end

-- Return us until the nth slot has work. Note in the lists above what is to be written later.
local function look_at(n, created)
  local stamp, waiting, blocked, ordered, leases_until, paused, limit, accepted, credits =
    unpack(redis.call('HMGET', slot, 'created', 'waiting', 'blocked', 'ordered', 'leases_until',
      'paused', 'limit', 'accepted', 'credits'))
  credits_of[n] = credits or ''
  if stamp ~= created and stamps == 1 then
    fail(stamp and 'ANEW' or 'GONE', slot)
  end
  if stamp ~= created then
    return -2
  end
  local ordered_until = end_of_wait(ordered, now)
  local gate = gate_of(paused, limit, accepted)
  local wait_us, field = next_ready_in(now_us, leases_until, ordered_until, gate)
  takes_credit[n] = wait_us ~= 0 and field == 'waiting' and not ordered_until and not gate
  if wait_us == 0 or not may_sleep then
    return wait_us
  end
  local noted = field == 'waiting' and waiting or field == 'blocked' and blocked
  if field and is_to_note(noted, now) then
    sleepers[#sleepers + 1], sleepers[#sleepers + 2] = n, field
  end
  if gate and gate.sends_wake and is_to_note(waiting, now) then
    sleepers[#sleepers + 1], sleepers[#sleepers + 2] = n, 'waiting'
  end
  return wait_us
end

local reply, all_sleep = {}, true
for n = 1, slots do
  use_slot(n)
  reply[n] = look_at(n, stamps == 1 and ARGV[3] or ARGV[2 + n])
  all_sleep = all_sleep and reply[n] ~= 0
end
for s = 1, #sleepers, 2 do
  use_slot(sleepers[s])
  note_sleeper(sleepers[s + 1], now)
end
if offer then
  --- @include "lib/wake/credits"
  for n = 1, slots do
    use_slot(n)
    local good = 0
    if is_repeated then
      good = -1 - remove_credit(offer.channel)
    elseif all_sleep and takes_credit[n] and offer.renews then
      good = renew_credit(credits_of[n], offer.channel, offer.listeners, offer.ends, now)
    elseif all_sleep and takes_credit[n] then
      local call = offer.words[3 + 2 * n] .. ' ' .. offer.words[4 + 2 * n]
      good = keep_credit(offer.text, offer.ends, offer.limit, offer.lease, call, now)
    end
    reply[slots + n] = good
  end
end
return reply
