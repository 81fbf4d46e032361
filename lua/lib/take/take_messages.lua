-- Taking messages from the StoreQueue, for prepare and query_take. Parts that are seldom needed include their libraries themselves:
-- every function is made anew at each run, which costs much in a script that takes one message.
--- @needs slot store prepare records dead failures merge audit bodies
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/settle/count_failed"
--- @include "lib/take/pick_messages"
--- @include "lib/scores/score_ranges"
--- @include "lib/slot_fields"
-- What the limits of the slot let a take have: (how many messages at most; nil, or when messages may be taken again, as
-- next_ready_in takes it: then nothing is taken; nil, or the limits for each key; nil, or the token bucket of the slot).
--- @inline
local function room_for_take(fields, limit, now)
  local gate, key_limit, bucket
  if fields[PAUSED] then
    gate = { at = math.huge }
  elseif fields[LIMIT] then
    --- @include "lib/take/key_limits"
    --- @include "lib/take/room_in"
    local room
    local lacking, held = unpack(redis.call('HMGET', slot, 'bucket', 'held'))
    local in_flight = redis.call('ZCARD', prepare)
    room, gate, bucket = room_in(fields[LIMIT], lacking, in_flight, now)
    if bucket and bucket.set_back then
      --- @include "lib/writes"
      allow_oom(store)
      redis.call('HSET', slot, 'bucket', string.format('%.0f:%.0f', bucket[1], bucket[2]))
    end
    limit, key_limit = math.min(limit, room), key_limit_in(fields[LIMIT])
    if key_limit and not gate then
      gate = held_gate(held, now, fields[ACCEPTED], in_flight)
    end
  end
  return limit, gate, key_limit, bucket
end

-- Whether something is in flight, in a slot in order or for a caller that asks for order, and the hold: nothing is taken while
-- there is, nor before the hold. So one batch of the slot is in flight at a time, and its consumer owns the slot until all of
-- it is settled or its lease expires. `since`: the field `ordered`; `ordered`: the caller asks for order.
--- @inline
local function order_of_take(since, ordered, now)
  --- @include "lib/take/in_order"
  local hold, in_flight = hold_until(since, now) or 1, redis.call('ZCARD', prepare) > 0
  if in_flight and ordered and not since then
    -- Deliveries from before the slot was in order: those that come back go to the front from now on.
    --- @include "lib/writes"
    allow_oom(store)
    redis.call('HSET', slot, 'ordered', 1, 'mixed', 1)
  end
  return in_flight, hold
end

-- Of messages that were picked in order, those before the first one that has failed since it was sent or redriven, or that one
-- alone: it may kill its consumer, and those behind it must not lose retries for that.
--- @inline
local function without_failed(ids, retries_left, max_retries, limit)
  for i = 1, #ids do
    if (retries_left[i] or max_retries) < max_retries then
      limit = math.max(1, i - 1)
      ids = { unpack(ids, 1, limit) }
      break
    end
  end
  return ids, limit
end

-- Whether a take that hands out no records need not read any: none of the messages may have expired, is to be dropped from the
-- merge index, or takes a token of its key. `no_expiry`: none of the slot expires. Then also how many are due or timed: for one
-- message it would cost more than it saves.
--- @inline
local function needs_no_records(fields, no_expiry)
  local unread = no_expiry and not fields[LIMIT] and not fields[ORDERED] and redis.call('HLEN', merge) == 0
  local above = unread and redis.call('ZCOUNT', store, PRIORITY_END, '+inf') or nil
  return unread, above
end

-- Of records that were read, the first ones that have together no more than so many bytes, large bodies included; one in any case.
-- And those of the positions to inspect that are among them.
--- @inline
local function within_bytes(taken, to_inspect, most_bytes)
  --- @include "lib/records/large_bodies"
  local bytes, kept = 0, {}
  for i = 1, #taken do
    bytes = bytes + #taken[i] + (is_large(taken[i]) and large_size(taken[i]) or 0)
    if bytes > most_bytes and i > 1 then
      break
    end
    kept[i] = taken[i]
  end
  while to_inspect and #to_inspect > 0 and to_inspect[#to_inspect] > #kept do
    to_inspect[#to_inspect] = nil
  end
  return kept, to_inspect
end

-- The records of the first messages, as many as READ_BYTES hold; a large body counts a quarter, since it does not pass through
-- here. A record that is missing or shorter than FIXED becomes '': the caller makes its message a dead letter. Returns the records;
-- nil, or the positions of those that may have expired or may be in the merge index; whether one has a large body.
--- @inline
local function read_taken(ids, chunk)
  local picked, taken, to_inspect, any_large, bytes, from, page = #ids, {}, nil, false, 0, 1, chunk
  while from <= picked and bytes < READ_BYTES do
    local to = math.min(picked, from + page - 1)
    local batch = redis.call('HMGET', records, unpack(ids, from, to))
    for i = 1, #batch do
      local record = batch[i]
      if not record or #record < FIXED then
        record, batch[i] = '', ''
      end
      bytes = bytes + #record
      local flags = (string.byte(record, 1) or 0) % HEADERS
      if flags >= EXPIRES then
        if flags % COLLECTS >= EXPIRES then
          to_inspect = to_inspect or {}
          to_inspect[#to_inspect + 1] = from + i - 1
        end
        if flags >= COLLECTS then
          --- @include "lib/records/large_bodies"
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
    page = math.max(1, math.min(4 * chunk, math.floor((READ_BYTES - bytes) / bytes * to)))
  end
  return taken, to_inspect, any_large
end

-- Which of the messages at these positions have expired, by position, or nil; and the merge keys under which they may be found.
--- @inline
local function inspect_taken(ids, taken, to_inspect, now)
  --- @include "lib/records/envelope"
  --- @include "lib/member"
  local merge_keys, expired = {}, nil
  for c = 1, #to_inspect do
    local i = to_inspect[c]
    local _, expiry, key = envelope(taken[i])
    if key then
      local entry = redis.call('HGET', merge, key)
      if entry and string.sub(entry, 1, MEMBER) == ids[i] then
        merge_keys[#merge_keys + 1] = key
      end
    end
    if expiry and expiry <= now then
      expired = expired or {}
      expired[i] = true
    end
  end
  return merge_keys, expired
end

-- Drop those that have expired of messages that were taken, or add them to the DeadQueue; the live ones move up in `ids` and
-- `taken`. Returns how many are live, and `retries_left` of these.
--- @inline
local function drop_expired(fields, ids, taken, expired, retries_left, now)
  --- @include "lib/dead_letters/dead_letters"
  --- @include "lib/groups/leave_groups"
  local on_expire, dead_retention_ms = unpack(redis.call('HMGET', slot, 'on_expire', 'dead_retention_ms'))
  local n, live, gone, mades, dropped, max_retries = 0, {}, {}, {}, {}, tonumber(fields[MAX_RETRIES])
  for i = 1, #taken do
    local left = retries_left and retries_left[i]
    if not expired[i] then
      n = n + 1
      ids[n], taken[n], live[n] = ids[i], taken[i], left or nil
    else
      gone[#gone + 1], dropped[#dropped + 1] = ids[i], taken[i]
      mades[#mades + 1] = max_retries - (left or max_retries)
    end
  end
  local bring_up = leaving_groups(gone, on_expire ~= 'drop')
  if on_expire == 'drop' then
    drop_records(gone)
    redis.call('HDEL', failures, unpack(gone))
    redis.call('HINCRBY', slot, 'expired', #gone)
    if fields[AUDITED] then
      --- @include "lib/audit"
      account_for('accounted', add_numbers(dropped, number_of, {}), now)
    end
  else
    local died = { ids = gone, mades = mades, reason = 'x', details = '' }
    add_dead(died, fields[AUDITED], tonumber(dead_retention_ms), now)
  end
  if bring_up then
    bring_up()
  end
  return n, retries_left and live
end

-- Remove the messages that were taken from the StoreQueue, where some may have expired or may be in the merge index. Returns how
-- many are live, and `retries_left` of these.
--- @inline
local function remove_inspected(fields, ids, taken, to_inspect, retries_left, now)
  local merge_keys, expired = inspect_taken(ids, taken, to_inspect, now)
  local n = #taken
  redis.call('ZCARD', dead)
  redis.call('HLEN', bodies)
  redis.call('ZREM', store, unpack(ids, 1, n))
  if #merge_keys > 0 then
    redis.call('HDEL', merge, unpack(merge_keys))
  end
  if expired then
    n, retries_left = drop_expired(fields, ids, taken, expired, retries_left, now)
  end
  return n, retries_left
end

-- Remove the messages that were picked from the StoreQueue. `on_top`: that so many of the first are the highest below the due and
-- timed ones; a range of ranks costs a third of their names.
-- `above`: how many those are, where the caller knows.
--- @inline
local function remove_picked(ids, count, on_top, above)
  if on_top >= count then
    local higher = above or redis.call('ZCOUNT', store, PRIORITY_END, '+inf')
    redis.call('ZREMRANGEBYRANK', store, -higher - count, -higher - 1)
  else
    redis.call('ZREMRANGEBYRANK', store, 1, 0) -- removes nothing; a producer, who may take nothing, may not call it
    redis.call('ZREM', store, unpack(ids, 1, count))
  end
end

-- Move `front` past the places of what came back since the last take; lib/take/in_order counts from there. A caller that does not
-- ask for order ends it: nothing is in flight and nothing held. In a slot with groups, `last_score`: of the message that was taken
-- last, by its share.
--- @inline
local function note_progress(hold, ordered, last_score)
  if last_score then
    --- @include "lib/groups/group_entries"
    note_taken(tonumber(last_score))
  end
  if hold then
    local front, span = unpack(redis.call('HMGET', slot, 'front', 'span'))
    redis.call('HSET', slot, 'front', tonumber(front or 0) - tonumber(span or 0), 'ordered', 1)
    redis.call('HDEL', slot, 'span', 'holder', 'mixed')
    if not ordered then
      redis.call('HDEL', slot, 'ordered')
    end
  end
end

-- Take the tokens of messages that are taken; return when the next ones may be, as next_ready_in takes it, or nil. `key_state`: of
-- open_keys, or nil.
--- @inline
local function take_tokens(fields, taken, bucket, key_state, now)
  --- @include "lib/take/room_in"
  local n, in_flight = #taken, redis.call('ZCARD', prepare)
  local left = bucket and string.format('%.0f:%.0f', bucket[1], bucket[2] + n)
  if left then
    redis.call('HSET', slot, 'bucket', left)
  end
  local _, gate = room_in(fields[LIMIT], left, in_flight + n, now)
  if key_state then
    --- @include "lib/take/key_limits"
    take_key_tokens(key_state, taken)
    if key_state.held then
      local note = held_note(key_state, fields[ACCEPTED], in_flight + n)
      gate = gate or held_gate(note, now, fields[ACCEPTED], in_flight + n)
      redis.call('HSET', slot, 'held', note)
    else
      redis.call('HDEL', slot, 'held')
    end
  end
  return gate
end

-- Take the messages that go next out of the StoreQueue. The caller adds them to the PrepareQueue, and writes the number of this
-- take.   fields: of read_take_fields   takes: the number of this take   ordered: whether the
-- caller asks for order   none_due: it knows that nothing is due   most_bytes: nil where the caller hands the records out; else it
-- does not, and so many bytes of them may be taken, or any number (0)   no_expiry: then, whether no message of the slot expires
-- Returns how many were taken; nil, or when messages may be taken again, as next_ready_in takes it; the hold of a slot in order, or
-- nil; whether there may be more just now; and, where some were taken, their ids, their records if these were read, the retries
-- that remain to those that have failed before, by position, or false, and whether one has a large body.
local function take_messages(fields, takes, limit, ordered, now, none_due, most_bytes, no_expiry)
  if fields[AUDITED] then
    redis.call('ZCARD', audit)
  end
  local failed = count_failed()
  local gate, key_limit, bucket, hold, in_flight, key_state
  limit, gate, key_limit, bucket = room_for_take(fields, limit, now)
  if gate then
    return 0, gate, nil, false
  end
  if ordered or fields[ORDERED] then
    in_flight, hold = order_of_take(fields[ORDERED], ordered, now)
    if in_flight or hold > now then
      return 0, nil, hold, false
    end
  end
  local unread, above = false, nil
  if most_bytes == 0 then
    unread, above = needs_no_records(fields, no_expiry)
    none_due = above == 0
  end
  limit = unread and limit or math.min(limit, MOST)
  local ids, retries_left, on_top, promoted = pick_messages(fields, takes, key_limit and MOST or limit, ordered,
    failed > 0, none_due, now) -- with limits for each key it looks past messages of held keys
  if key_limit and #ids > 0 then
    --- @include "lib/take/skip_held"
    ids, retries_left, on_top, gate, key_state = skip_held(fields, key_limit, ids, retries_left, on_top, limit, hold, now)
  end
  if ordered and retries_left then
    ids, limit = without_failed(ids, retries_left, tonumber(fields[MAX_RETRIES]), limit)
  end
  local taken, to_inspect, any_large = ids, nil, false
  if not unread then
    taken, to_inspect, any_large = read_taken(ids, tonumber(fields[CHUNK]))
  end
  if (most_bytes or 0) > 0 then
    taken, to_inspect = within_bytes(taken, to_inspect, most_bytes)
  end
  local picked, all = #ids, #taken
  local n = all
  if n == 0 then
    return 0, gate, hold, promoted > 0
  end
  local last_score = fields[GROUPED] and redis.call('ZSCORE', store, ids[on_top > 0 and math.min(on_top, n) or n])
  if to_inspect then
    n, retries_left = remove_inspected(fields, ids, taken, to_inspect, retries_left, now)
    if n == 0 then
      return 0, gate, hold, true
    end
  else
    remove_picked(ids, all, on_top, promoted == 0 and above)
  end
  note_progress(hold, ordered, last_score)
  if picked > n then
    ids, taken = { unpack(ids, 1, n) }, { unpack(taken, 1, n) }
  end
  if fields[LIMIT] then
    gate = take_tokens(fields, taken, bucket, key_state, now)
  end
  return n, gate, hold, all >= limit or all < picked or promoted > 0, ids, taken, retries_left, any_large
end
