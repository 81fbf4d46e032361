-- Taking messages from the StoreQueue, for prepare and query_take. A part that few takes need is a
-- library of its own, included where it is needed: a script makes its functions at each run.
--- @needs slot store prepare records merge audit
--- @include "lib/bounds"
--- @include "lib/settle/count_failed"
--- @include "lib/take/pick_messages"
--- @include "lib/scores/score_ranges"
--- @include "lib/slot_fields"

-- Return whether nothing may be taken now, and the hold, in a slot in order or for a caller that
-- asks for order. Nothing is taken while a delivery is in flight, nor before the hold: one batch of
-- the slot is in flight at a time, and its consumer owns the slot until the batch is settled or its
-- lease expires.
--- @inline
local function state_of_order(take)
  --- @include "lib/take/in_order"
  local since = take.fields[ORDERED]
  local hold, in_flight = hold_until(since, take.now) or 1, redis.call('ZCARD', prepare) > 0
  if in_flight and take.ordered and not since then
    -- Deliveries from before the slot was in order go to the front when they come back.
    --- @include "lib/writes"
    allow_oom(store)
    redis.call('HSET', slot, 'ordered', 1, 'mixed', 1)
  end
  return in_flight or hold > take.now, hold
end

-- Move `front` past the places of the deliveries that came back since the last take:
-- lib/take/in_order counts from there. A caller that does not ask for order ends the slot's order:
-- nothing is in flight or held.
--- @inline
local function note_order(ordered)
  local front, span = unpack(redis.call('HMGET', slot, 'front', 'span'))
  local moved = tonumber(front or 0) - tonumber(span or 0)
  redis.call('HSET', slot, 'front', moved, 'ordered', 1)
  redis.call('HDEL', slot, 'span', 'holder', 'mixed')
  if not ordered then
    redis.call('HDEL', slot, 'ordered')
  end
end

-- Return whether a take that does not return records can leave them unread: no message of the slot
-- expires, is in the merge index or takes a token of its key.
--- @inline
local function needs_no_records(take)
  local fields = take.fields
  local unread = take.no_expiry and not fields[LIMIT] and not fields[ORDERED]
    and redis.call('HLEN', merge) == 0
  return unread
end

-- Keep the messages before the first one that has failed since it was sent or redriven, or that one
-- alone: it may kill its consumer, and the messages behind it must not lose retries for that.
--- @inline
local function stop_before_failed(take, batch)
  local ids, retries_left, max_retries = batch.ids, batch.retries_left, batch.max_retries
  for i = 1, #ids do
    if (retries_left[i] or max_retries) < max_retries then
      take.limit = math.max(1, i - 1)
      batch.ids = { unpack(ids, 1, take.limit) }
      break
    end
  end
end

-- Keep the records of the first messages that have together at most `most_bytes`, with their large
-- bodies; at least one.
--- @inline
local function keep_within(batch, most_bytes)
  --- @include "lib/records/large_bodies"
  local read, kept, bytes, to_inspect = batch.records, {}, 0, batch.to_inspect
  for i = 1, #read do
    local record = read[i]
    local has_body = is_large(record)
    local size = large_size(record)
    bytes = bytes + #record + (has_body and size or 0)
    if bytes > most_bytes and i > 1 then
      break
    end
    kept[i] = read[i]
  end
  while to_inspect and #to_inspect > 0 and to_inspect[#to_inspect] > #kept do
    to_inspect[#to_inspect] = nil
  end
  batch.records = kept
end

-- Read the records of the first messages of a batch, up to READ_BYTES; a large body counts a
-- quarter, since it does not pass through here. A record that is missing or shorter than FIXED
-- becomes '': the caller makes its message a dead letter. Sets `records` of the batch, `any_large`,
-- and `to_inspect`: nil, or the positions of messages that may have expired or may be in the merge
-- index.
--- @inline
local function read_records(batch, chunk)
  local ids, read, to_inspect, bytes, from, page = batch.ids, {}, nil, 0, 1, chunk
  while from <= #ids and bytes < READ_BYTES do
    local to = math.min(#ids, from + page - 1)
    local found = redis.call('HMGET', records, unpack(ids, from, to))
    for i = 1, #found do
      local record = found[i]
      if not record or #record < FIXED then
        record, found[i] = '', ''
      end
      bytes = bytes + #record
      local flags = (string.byte(record, 1) or 0) % HEADERS
      if flags >= EXPIRES and flags % COLLECTS >= EXPIRES then
        to_inspect = to_inspect or {}
        to_inspect[#to_inspect + 1] = from + i - 1
      end
      if flags >= COLLECTS then
        --- @include "lib/records/large_bodies"
        local has_body = is_large(record)
        if has_body then
          local size = large_size(record)
          batch.any_large, bytes = true, bytes + size / 4
        end
      end
    end
    if from == 1 then
      read = found
    else
      for i = 1, #found do
        read[from + i - 1] = found[i]
      end
    end
    from = to + 1
    -- Next, as many records as fit if they are as large as those read so far.
    local fitting = math.floor((READ_BYTES - bytes) / bytes * to)
    page = math.max(1, math.min(4 * chunk, fitting))
  end
  batch.records, batch.to_inspect = read, to_inspect
end

-- Remove the first `count` messages of a batch from the StoreQueue. A range of ranks costs a third
-- of their names. `above`: nil, or how many messages are due or timed.
--- @inline
local function remove_picked(batch, count, above)
  if batch.on_top >= count then
    local higher = above or redis.call('ZCOUNT', store, PRIORITY_END, '+inf')
    redis.call('ZREMRANGEBYRANK', store, -higher - count, -higher - 1)
  else
    -- This removes nothing. But the user of a producer may not call the command, so it cannot take.
    redis.call('ZREMRANGEBYRANK', store, 1, 0)
    redis.call('ZREM', store, unpack(batch.ids, 1, count))
  end
end

-- Remove the first `removed` messages of a batch from the StoreQueue, write all that a take writes,
-- and set `count` and `more` of the batch.
--- @inline
local function finish_take(take, batch, removed, above)
  local fields, ids, picked = take.fields, batch.ids, #batch.ids
  local last = batch.on_top > 0 and math.min(batch.on_top, removed) or removed
  local last_score = fields[GROUPED] and redis.call('ZSCORE', store, ids[last])
  batch.count = removed
  if batch.to_inspect then
    --- @include "lib/take/take_inspected"
    take_inspected(take, batch)
  else
    remove_picked(batch, removed, batch.promoted == 0 and above)
  end
  if batch.count == 0 then -- all have expired
    batch.more = true
    return
  end
  if last_score then
    --- @include "lib/groups/group_entries"
    note_taken(tonumber(last_score))
  end
  if batch.hold then
    note_order(take.ordered)
  end
  if picked > batch.count then
    batch.ids = { unpack(ids, 1, batch.count) }
    batch.records = { unpack(batch.records, 1, batch.count) }
  end
  if fields[LIMIT] then
    batch.gate = take.take_tokens(take, batch)
  end
  batch.more = removed >= take.limit or removed < picked or batch.promoted > 0
end

-- Take the messages that go next out of the StoreQueue. The caller adds them to the PrepareQueue
-- and writes the number of the take.
--
-- Fields of `take`:
--   fields      of read_take_fields
--   number      of this take
--   limit       how many messages to take
--   ordered     whether the caller asks for order
--   now         epoch ms
--   none_due    whether the caller knows that nothing is due
--   most_bytes  nil if the caller returns the records; else how many bytes of them it takes, 0: any
--   no_expiry   with most_bytes: whether no message of the slot expires
-- take_messages sets further fields, for the functions that it calls.
--
-- Returns a batch:
--   count         how many messages were taken
--   gate          when messages may be taken again, as next_ready_in takes it; nil or false: now
--   hold          the hold of a slot in order; nil or false if there is none
--   more          whether there may be more now
--   ids, records  of the messages; records are missing if they were not read
--   retries_left  false, or by position the retries that remain to messages that have failed before
--   any_large     whether a message has a large body
local function take_messages(take)
  local fields, hold = take.fields, nil
  if fields[AUDITED] then
    redis.call('ZCARD', audit)
  end
  local failed = count_failed()
  if fields[PAUSED] then
    return { count = 0, gate = { at = math.huge } }
  end
  if fields[GROUPED] then
    --- @include "lib/take/group_functions"
    take.group_functions = group_functions
  end
  if fields[LIMIT] then
    --- @include "lib/take/take_limits"
    --- @include "lib/take/skip_held"
    take.skip_held, take.take_tokens = skip_held, take_tokens
    local gate = open_limits(take)
    if gate then
      return { count = 0, gate = gate }
    end
  end
  if take.ordered or fields[ORDERED] then
    local is_busy
    is_busy, hold = state_of_order(take)
    take.hold = hold
    if is_busy then
      return { count = 0, hold = hold }
    end
  end
  local unread, above = false, nil -- above: how many messages are due or timed
  if take.most_bytes == 0 then
    unread = needs_no_records(take)
    above = unread and redis.call('ZCOUNT', store, PRIORITY_END, '+inf') or nil
    take.none_due = above == 0
  end
  if not unread then
    take.limit = math.min(take.limit, MOST)
  end
  -- With limits for each key, a take looks past messages of held keys.
  local batch = pick_messages(take, take.key_limit and MOST or take.limit, failed > 0)
  batch.hold = hold
  if take.key_limit and #batch.ids > 0 then
    take.skip_held(take, batch)
  end
  if take.ordered and batch.retries_left then
    stop_before_failed(take, batch)
  end
  if not unread then
    read_records(batch, tonumber(fields[CHUNK]))
  end
  if (take.most_bytes or 0) > 0 then
    keep_within(batch, take.most_bytes)
  end
  local removed = unread and #batch.ids or #batch.records
  if removed > 0 then
    finish_take(take, batch, removed, above)
  else
    batch.more = batch.promoted > 0
  end
  return batch
end
