-- Taking messages from the StoreQueue, for prepare and query_take. Parts that few takes need are
-- libraries of their own, included where they are needed: a script creates its functions at each
-- run.
--- @needs slot store prepare records merge audit
--- @include "lib/bounds"
--- @include "lib/settle/count_failed"
--- @include "lib/take/pick_messages"
--- @include "lib/scores/score_ranges"
--- @include "lib/slot_fields"

-- Return whether no message may be taken now, and until when the slot waits. For a slot in order,
-- or a caller that asks for order. One batch of such a slot is in flight at a time. Its consumer
-- owns the slot until the batch is settled or its lease expires. After a failure, the slot waits.
--- @inline
local function state_of_order(take)
  --- @include "lib/take/in_order"
  local since = take.fields[ORDERED]
  local ordered_until = end_of_wait(since, take.now)
  ordered_until = ordered_until or 1
  local in_flight = redis.call('ZCARD', prepare) > 0
  if in_flight and take.ordered and not since then
    -- Deliveries from before the slot was in order go to the front when they come back.
    --- @include "lib/writes"
    allow_oom(store)
    redis.call('HSET', slot, 'ordered', 1, 'mixed', 1)
  end
  return in_flight or ordered_until > take.now, ordered_until
end

-- Move `front` past the places of the deliveries that came back since the last take:
-- lib/take/in_order counts from there. A caller that does not ask for order ends the order of the
-- slot, because nothing is in flight and the slot does not wait. `stays`: whether the order stays.
--- @inline
local function note_order(stays)
  local front, span = unpack(redis.call('HMGET', slot, 'front', 'span'))
  local moved = tonumber(front or 0) - tonumber(span or 0)
  redis.call('HSET', slot, 'front', moved, 'ordered', 1)
  redis.call('HDEL', slot, 'span', 'holder', 'mixed')
  if not stays then
    redis.call('HDEL', slot, 'ordered')
  end
end

-- Return whether a take that returns no records need not read them: no message of the slot expires,
-- is in the merge index, or takes a token of its key.
--- @inline
local function needs_no_records(take)
  local fields = take.fields
  local unread = take.no_expiry and not fields[LIMIT] and not fields[ORDERED]
    and redis.call('HLEN', merge) == 0
  return unread
end

-- Keep the messages before the first message that has failed since it was sent or redriven. If no
-- message is before that message, keep it alone: it may crash its consumer, and messages that were
-- delivered with it would lose a retry.
--- @inline
local function stop_before_failed(take, batch)
  local ids, retries_left, max_retries = batch.ids, batch.retries_left, take.max_retries
  for i = 1, #ids do
    if (retries_left[i] or max_retries) < max_retries then
      take.limit = math.max(1, i - 1)
      batch.ids = { unpack(ids, 1, take.limit) }
      break
    end
  end
end

-- Keep the messages that a slot in order may give together, and now.
--- @inline
local function keep_in_order(take, batch)
  if take.ordered and batch.retries_left then
    stop_before_failed(take, batch)
  end
  if take.fields[WAITED] then
    --- @include "lib/events/stop_before_waiting"
    stop_before_waiting(take, batch)
  end
end

-- Keep the records of the first messages, at least one, up to `most_bytes` of records and large
-- bodies.
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

-- Return the bytes that a record counts. A large body counts a quarter of its size, because it does
-- not pass through the script. Sets `any_large` of the batch. `flags`: from the record.
--- @inline
local function counted_bytes(batch, record, flags)
  if flags < COLLECTS then
    return #record
  end
  --- @include "lib/records/large_bodies"
  local has_body = is_large(record)
  if not has_body then
    return #record
  end
  batch.any_large = true
  local size = large_size(record)
  return #record + size / 4
end

-- Read the records of the first messages of a batch, up to READ_BYTES. A record that is missing or
-- shorter than FIXED becomes '': the caller makes its message a dead letter. Sets `records`,
-- `any_large` and `to_inspect` of the batch. `to_inspect`: nil, or the positions of messages that
-- may have expired or may be in the merge index.
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
      local flags = (string.byte(record, 1) or 0) % HEADERS
      if flags >= EXPIRES and flags % COLLECTS >= EXPIRES then
        to_inspect = to_inspect or {}
        to_inspect[#to_inspect + 1] = from + i - 1
      end
      local size = counted_bytes(batch, record, flags)
      bytes = bytes + size
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
  batch.records = read
  if to_inspect then
    batch.to_inspect = to_inspect
  end
end

-- Remove the first `count` messages of a batch from the StoreQueue. A range of ranks costs a third
-- of a list of members, and the append-only file gets no member. `above`: nil, or the number of due
-- and timed messages, which rank above.
--- @inline
local function remove_picked(batch, count, above)
  if batch.on_top >= count then
    local higher = above or redis.call('ZCOUNT', store, PRIORITY_END, '+inf')
    redis.call('ZREMRANGEBYRANK', store, -higher - count, -higher - 1)
  elseif batch.due_first >= count then
    local lower = redis.call('ZCOUNT', store, '-inf', BELOW_PRIORITY_END)
    redis.call('ZREMRANGEBYRANK', store, lower, lower + count - 1)
  else
    -- Removes nothing. Called for its ACL effect: a producer's user lacks this command, so the take
    -- fails.
    redis.call('ZREMRANGEBYRANK', store, 1, 0)
    redis.call('ZREM', store, unpack(batch.ids, 1, count))
  end
end

-- Remove the first `to_remove` messages of a batch from the StoreQueue, and make all other writes
-- of a take. Sets `count`, `more` and `gate` of the batch. May shorten its lists.
--- @inline
local function finish_take(take, batch, to_remove, above)
  local fields, ids, picked = take.fields, batch.ids, #batch.ids
  local last = batch.on_top > 0 and math.min(batch.on_top, to_remove) or to_remove
  local last_score = fields[GROUPS] and redis.call('ZSCORE', store, ids[last])
  batch.count = to_remove
  if batch.to_inspect then
    --- @include "lib/take/take_inspected"
    take_inspected(take, batch)
  else
    remove_picked(batch, to_remove, batch.promoted == 0 and above)
  end
  if batch.count == 0 then -- all have expired
    batch.more = true
    return
  end
  if last_score then -- the virtual time of the groups moves to it
    --- @include "lib/groups/group_entries"
    note_taken(tonumber(last_score))
  end
  if take.ordered_until then
    note_order(take.ordered or take.is_stopped)
  end
  if picked > batch.count then
    batch.ids = { unpack(ids, 1, batch.count) }
    batch.records = { unpack(batch.records, 1, batch.count) }
  end
  if fields[LIMIT] then
    batch.gate = take.take_tokens(take, batch)
  end
  batch.more = to_remove >= take.limit or to_remove < picked or batch.promoted > 0 or batch.is_cut
end

-- Take the messages that go next out of the StoreQueue. The caller adds them to the PrepareQueue
-- and writes the number of the take.
--
-- Fields of `take`:
-- - fields: from read_take_fields
-- - number: number of this take
-- - limit: how many messages to take
-- - ordered: whether the caller asks for order
-- - now: epoch ms
-- - none_due: whether the caller knows that no message is due
-- - most_bytes: nil if the caller returns the records. Else how many bytes of records it takes, 0:
--   any number
-- - no_expiry: with most_bytes: whether no message of the slot expires
--
-- take_messages sets further fields, for the functions that it calls. `ordered_until` is for the
-- caller too: until when a slot in order waits; nil if the slot is not in order.
--
-- Returns a batch:
-- - count: how many messages were taken
-- - gate: when the slot gives messages again (next_ready_in describes it); nil or false: now
-- - more: whether there may be more messages now
-- - ids, records: lists; records are missing if they were not read
-- - retries_left: false, or by position the retries that remain to messages that have failed before
-- - any_large: whether a message has a large body
--- @inline
local function take_messages(take)
  local fields = take.fields
  if fields[AUDITED] then
    redis.call('ZCARD', audit)
  end
  local failed = count_failed()
  if fields[PAUSED] then
    return { count = 0, gate = { at = math.huge } }
  end
  if fields[GROUPS] then
    --- @include "lib/take/group_functions"
    take.group_functions = group_functions
  end
  if fields[LIMIT] then
    --- @include "lib/take/take_limits"
    --- @include "lib/take/skip_limited"
    -- Functions that exist only in this block, for calls outside of it.
    take.skip_limited, take.take_tokens = skip_limited, take_tokens
    local gate = open_limits(take)
    if gate then
      return { count = 0, gate = gate }
    end
  end
  if take.ordered or fields[ORDERED] then
    local is_busy, ordered_until = state_of_order(take)
    take.ordered_until = ordered_until
    if is_busy then
      return { count = 0 }
    end
  end
  local unread, above = false, nil -- above: number of due and timed messages
  if take.most_bytes == 0 then
    unread = needs_no_records(take)
    above = unread and redis.call('ZCOUNT', store, PRIORITY_END, '+inf') or nil
    take.none_due = above == 0
  end
  if not unread then
    take.limit = math.min(take.limit, MOST)
  end
  -- With limits for each key, a take looks past messages whose key is at its limit.
  local batch = pick_messages(take, take.key_limit and MOST or take.limit, failed > 0)
  if take.key_limit and #batch.ids > 0 then
    take.skip_limited(take, batch)
  end
  if take.ordered_until then
    keep_in_order(take, batch)
  end
  if not unread then
    read_records(batch, tonumber(fields[CHUNK]))
  end
  if (take.most_bytes or 0) > 0 then
    keep_within(batch, take.most_bytes)
  end
  local to_remove = unread and #batch.ids or #batch.records
  if to_remove > 0 then
    finish_take(take, batch, to_remove, above)
  else
    batch.more = batch.promoted > 0
  end
  return batch
end
