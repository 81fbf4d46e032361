--[[
take_messages: pick the messages that go next and remove them from the StoreQueue, for prepare and query_take. It is
placed inline, and seldom needed parts are included in their branch: every function of a script is made anew at each
run, which is costly for a script that takes one message.

Reads:     slot, store, prepare, records, dead, failures, merge, audit, bodies, rates: keys
           now, now_us, limit, waits, ordered
           credit_lease: where waits is an offer
           credit_bits: for the reply, what a repeated call has done to a credit; else 0
           s: the fields of the slot, from take_fields
           takes: the number of this take; the caller writes it to the slot, with that of the last delivery
           created: the topic's stamp, as the caller opened it
           again: whether an earlier copy of this call had no reply
           call: where again is true
Writes:    limit
Declares:  ids, taken, n: ids and records of the messages taken, and how many they are
           retries_left: false, or by position the retries that remain to messages that have failed before
           reply: the fields of the reply, without the deadline
           drained: whether there is nothing more to take just now
           gate: nil, or when messages may be taken again, for next_ready_in
           key_limit, keys: nil, or the limits of the slot for each key, and what open_keys returns
           bucket: nil, or what room_in returns of the slot's rate
           max_retries, chunk, expired_leases, failed, any_failed, on_top, priorities, promoted, hold, shared_expired,
           picked, to_inspect, any_large, bytes, want, from, page, all, due, TAKE_MOST, TAKE_BYTES, ORDER_END
Returns for the caller: yes: the reply, when there is nothing to take
]]
--- @include "lib/check"
--- @include "lib/score_ranges"
if s[1] ~= created then
  fail(s[1] and 'ANEW' or 'GONE', slot)
end
if s[9] then
  redis.call('ZCARD', audit)
end
local max_retries, chunk = tonumber(s[2]), tonumber(s[3])
-- A deadline is a whole second, a receipt just above it.
local expired_leases = redis.call('ZCOUNT', prepare, '-inf', string.format('(%.0f', now - now % 1000 + 1000))
--- @include "lib/inline/count_failed"
local any_failed = failed > 0
local TAKE_MOST, TAKE_BYTES = 1000, 4194304
local ORDER_END = 4294967296 -- from here on, scores of the largest priorities tie
local ids, retries_left, promoted, hold, gate = {}, false, 0, nil, nil
local key_limit, keys, want, bucket
local on_top, priorities = false, 0 -- whether the first so many ids are the highest priorities
local shared_expired = s[10] and tonumber(s[10]) <= now -- a lease that stands for many deliveries
local reply = { 0, (expired_leases > 0 and 1 or 0) + (shared_expired and 2 or 0) + credit_bits, 0, tonumber(s[5] or 0) + 1,
  tonumber(s[7] or 0), '', {}, {} }

if s[12] then
  gate = { at = math.huge } -- paused
elseif s[13] then
  --- @include "lib/key_limits"
  --- @include "lib/limits"
  local room
  local noted, in_flight = redis.call('HMGET', slot, 'bucket', 'held'), redis.call('ZCARD', prepare)
  room, gate, bucket = room_in(s[13], noted[1], in_flight, now)
  if bucket and bucket.set_back then
    --- @include "lib/writes"
    allow_oom(store)
    redis.call('HSET', slot, 'bucket', string.format('%.0f:%.0f', bucket[1], bucket[2]))
  end
  limit, key_limit = math.min(limit, room), key_limit_in(s[13])
  if key_limit and not gate then
    gate = held_gate(noted[2], now, s[7], in_flight)
  end
end
if gate then
  --- @include "lib/inline/return_empty"
end

-- In a slot in order, or for a caller that asks for order, nothing is taken while something is in flight, nor before the
-- hold. So one batch of the slot is in flight at a time, and its consumer owns the slot until all of it is
-- settled or its lease expires.
if ordered or s[8] then
  --- @include "lib/in_order"
  hold = hold_until(slot, store, s[8], now) or 1
  local in_flight = redis.call('ZCARD', prepare) > 0
  if in_flight and ordered and not s[8] then
    -- Deliveries from before the slot was in order: those that come back go to the front from now on.
    --- @include "lib/writes"
    allow_oom(store)
    redis.call('HSET', slot, 'ordered', 1, 'mixed', 1)
  end
  if in_flight or hold > now then
    --- @include "lib/inline/return_empty"
  end
end

want = limit
if key_limit then
  limit = TAKE_MOST -- look past messages of held keys
end

-- Due timed messages go first, earliest first; then priorities, larger first; then retries, larger first. One take in
-- five begins with the retries, and one with the priorities, so that a flood of other messages cannot starve them. A take in
-- order always begins with the retries: those there failed before the slot was in order, and are older than all that waits.
-- One that begins with the priorities looks at what is due all the same: some of it may have to join them.
local due
for turn = 1, 3 do
  local family = (ordered or takes % 5 == 0) and (turn + 1) % 3 + 1 or turn
  local n = #ids
  if n >= limit then
    break
  end
  if family == 1 then
    local past = string.format('(%.0f', now + 1)
    local page = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, past, 'WITHSCORES', 'LIMIT', 0, limit - n)
    if #page > 0 then
      --- @include "lib/inline/promote_due"
      if takes % 5 == 3 and not ordered then -- what joins no priority goes behind them
        due, ids, retries_left = { ids, retries_left or {} }, {}, false
      end
    end
  elseif family == 2 then
    local batch
    local in_order_of_scores = tonumber(s[4] or 0) < ORDER_END and tonumber(s[11] or 0) > -ORDER_END
    if in_order_of_scores then
      batch = redis.call('ZREVRANGEBYSCORE', store, '(1048576', PRIORITY_MIN, 'LIMIT', 0, limit - n)
    else
      --- @include "lib/inline/read_ties"
    end
    if any_failed and #batch > 0 then
      --- @include "lib/failures"
      retries_left = retries_left or {}
      local entries = redis.call('HMGET', failures, unpack(batch))
      for i = 1, #batch do
        retries_left[n + i] = entries[i] and retries_in(entries[i], max_retries) or nil
      end
    end
    if n == 0 then
      ids, on_top, priorities = batch, in_order_of_scores, #batch
    else
      for i = 1, #batch do
        ids[n + i] = batch[i]
      end
    end
    for i = 1, due and math.min(#due[1], limit - #ids) or 0 do
      ids[#ids + 1] = due[1][i]
      if due[2][i] then
        retries_left = retries_left or {}
        retries_left[#ids] = due[2][i]
      end
    end
  else
    local batch = redis.call('ZREVRANGEBYSCORE', store, '(17', 0, 'WITHSCORES', 'LIMIT', 0, limit - n)
    if #batch > 0 then
      if takes % 10 == 0 and not ordered then
        -- One take in ten begins with the retries that have the fewest deliveries left, the oldest of each number first:
        -- they stand behind all that failed for the first time, and a steady stream of those would starve them.
        batch = {}
        for left = 1, 16 do
          local room = limit - n - #batch / 2
          if room < 1 then
            break
          end
          local level = redis.call('ZREVRANGEBYSCORE', store, string.format('(%d', left + 1), left, 'WITHSCORES',
            'LIMIT', 0, room)
          for i = 1, #level do
            batch[#batch + 1] = level[i]
          end
        end
      end
      retries_left = retries_left or {}
      for i = 1, #batch / 2 do
        ids[n + i] = batch[2 * i - 1]
        retries_left[n + i] = math.max(0, math.floor(tonumber(batch[2 * i])) - 1)
      end
    end
  end
end

limit = want
if key_limit and #ids > 0 then
  --- @include "lib/inline/skip_held"
end
if ordered and retries_left then
  -- A message that has failed since it was sent or redriven is taken alone: it may kill its consumer, and those behind
  -- it must not lose retries for that.
  for i = 1, #ids do
    if (retries_left[i] or max_retries) < max_retries then
      limit = math.max(1, i - 1)
      ids = { unpack(ids, 1, limit) }
      break
    end
  end
end

-- The records, as many as 4 MiB hold; a large body counts a quarter, since it does not pass through here. An id without a
-- record stops the script: nothing has been taken. `to_inspect`: the positions of records that may have expired or may be in the
-- merge index (flags 2 and 4).
local picked, taken, to_inspect, any_large, bytes, from, page = #ids, {}, nil, false, 0, 1, chunk
while from <= picked and bytes < TAKE_BYTES do
  local to = math.min(picked, from + page - 1)
  local batch = redis.call('HMGET', records, unpack(ids, from, to))
  for i = 1, #batch do
    local record = batch[i]
    if not record or #record < 8 then
      fail('RECORD', records)
    end
    bytes = bytes + #record
    local flags = string.byte(record, 1) % 16
    if flags >= 2 then
      if flags % 8 >= 2 then
        to_inspect = to_inspect or {}
        to_inspect[#to_inspect + 1] = from + i - 1
      end
      if flags >= 8 then
        --- @include "lib/large_bodies"
        if is_large(record) then
          any_large, bytes = true, bytes + large_size(record) / 4
        end
      end
    end
    if from > 1 then
      taken[from + i - 1] = record
    end
  end
  if from == 1 then
    taken = batch
  end
  from = to + 1
  -- As many more as fit if they are as large as those so far.
  page = math.max(1, math.min(4 * chunk, math.floor((TAKE_BYTES - bytes) / bytes * to)))
end

local all = #taken
local n = all
if all == 0 then
  --- @include "lib/inline/return_empty"
end
if to_inspect then
  --- @include "lib/inline/remove_taken"
elseif on_top and all <= priorities then
  -- They are the highest below the due and timed messages: a range of ranks costs a third of their names.
  local above = redis.call('ZCOUNT', store, PRIORITY_END, '+inf')
  redis.call('ZREMRANGEBYRANK', store, -above - all, -above - 1)
else
  redis.call('ZREM', store, unpack(ids, 1, all))
end
if hold then
  -- Move `front` past the places of what came back since the last take; lib/in_order counts from there.
  local places = redis.call('HMGET', slot, 'front', 'span')
  redis.call('HSET', slot, 'front', tonumber(places[1] or 0) - tonumber(places[2] or 0), 'ordered', 1)
  redis.call('HDEL', slot, 'span', 'holder', 'mixed')
  if not ordered then
    redis.call('HDEL', slot, 'ordered') -- nothing is in flight and nothing held: a plain caller ends the order
  end
end
if any_large then
  reply[2] = reply[2] + 4
end
if retries_left then
  local marks = {}
  for i = 1, n do
    retries_left[i] = retries_left[i] or max_retries
    marks[i] = string.char(retries_left[i])
  end
  reply[6] = table.concat(marks)
end
if picked > n then
  ids, taken = { unpack(ids, 1, n) }, { unpack(taken, 1, n) }
end
reply[7], reply[8] = ids, taken
if s[13] then
  -- Take the tokens of these messages. `gate` then tells when the next ones may be taken.
  --- @include "lib/limits"
  local in_flight = redis.call('ZCARD', prepare)
  local left = bucket and string.format('%.0f:%.0f', bucket[1], bucket[2] + n)
  if left then
    redis.call('HSET', slot, 'bucket', left)
  end
  gate = select(2, room_in(s[13], left, in_flight + n, now))
  if keys then
    --- @include "lib/key_limits"
    take_key_tokens(keys, taken)
    if keys.held then
      local note = held_note(keys, store, s[7], in_flight + n)
      gate = gate or held_gate(note, now, s[7], in_flight + n)
      redis.call('HSET', slot, 'held', note)
    else
      redis.call('HDEL', slot, 'held')
    end
  end
end
local drained = all < limit and all == picked and promoted == 0
