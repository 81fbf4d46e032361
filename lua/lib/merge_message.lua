-- Range-merge of one message, for merge and publish.
--- @include "lib/check"
--- @include "lib/member"
--- @include "lib/score_ranges"
--- @include "lib/timed_score"
--- @include "lib/record_bytes"
--- @include "lib/envelope"
--- @include "lib/settled"
--- @include "lib/wake"
local MERGED_MOST = 16777216 -- bytes of a merged body

-- An element of a collected list.
local function element(text)
  return struct.pack('>I4', #text) .. text
end

-- Check what comes with a message: (priority, ms for which its window is open, max_wait_ms, max_bytes).
--- @inline
local function check_merge(given, at)
  local id, head, rest = unpack(given, at + 1, at + 3)
  if #id ~= MEMBER or #head ~= HEAD then
    fail('ARG', 'id')
  end
  local priority = priority_of(head)
  if priority > 0 and (priority < PRIORITY_MIN or priority >= PRIORITY_END) then
    fail('ARG', 'priority')
  end
  local range = read48(rest, 1)
  local max_wait = whole_number(given[at + 7], 0, TIMED_MIN - 1, 'max_wait_ms')
  local max_bytes = whole_number(given[at + 8], 1, MERGED_MOST, 'max_bytes')
  if range < 1 or range >= TIMED_MIN then
    fail('ARG', 'time_range')
  end
  return priority, range, max_wait, max_bytes
end

-- Whether the message is here already, or was settled. Types are checked, too.
--- @inline
local function is_duplicate(keys, given, at, window, last_turn, now)
  local id = given[at + 1]
  local duplicate = redis.call('HEXISTS', keys[3], id) == 1
  redis.call('SCARD', keys[5])
  redis.call('SCARD', keys[6])
  if not duplicate and window > 0 then
    local settled = find_settled(keys[5], keys[6], window, last_turn, now, given, at + 1, at + 1)
    duplicate = settled and settled[1] == 1
  end
  return duplicate
end

-- The waiting message that this one merges into: its score, its record, when it expires, or nil, and its merge key; nil where this
-- one opens another window. `target`: its member, or nil.
--- @inline
local function find_target(keys, target, head, body, mode, max_bytes, now)
  local score = target and redis.call('ZSCORE', keys[2], target)
  local record, expiry, waiting_key = score and redis.call('HGET', keys[3], target), nil, nil
  if score and not record then
    fail('RECORD', keys[3])
  end
  if record then
    local codec, _ = math.floor(string.byte(head, 1) / 32), nil
    if #record >= FIXED then
      _, expiry, waiting_key = envelope(record)
    end
    if not waiting_key then
      fail('RECORD', keys[3])
    end
    local first = string.byte(record, 1)
    if expiry and expiry <= now then
      record = nil -- it goes to the DeadQueue next: a message that merges into it now would be lost with it
    elseif mode == 'collect' and (#record + (flagged(first, COLLECTS) and 4 or 8) + #body > max_bytes
        or math.floor(first / 32) ~= codec) then
      record = nil -- the list is full, or of another codec: it stays as it is, and this message opens the next one
    end
  end
  return score, record or nil, expiry, waiting_key
end

-- The record after a merge; nil where it stays as it is. The waiting envelope stays, however the body behind it changes; and a list
-- stays a list, so that producers of different modes leave a body that can be read.
--- @inline
local function merged_record(record, head, body, mode, expiry, waiting_key)
  local codec, first, merged = math.floor(string.byte(head, 1) / 32), string.byte(record, 1), nil
  local flags, collects = first % 32, flagged(first, COLLECTS)
  local body_at = 9 + 6 + (expiry and 6 or 0) + 2 + #waiting_key
  if flags >= HEADERS then
    body_at = body_at + 2 + struct.unpack('>I2', record, body_at)
  end
  if mode == 'last' then
    merged = string.char(codec * 32 + flags) .. string.sub(record, 2, body_at - 1) .. (collects and element(body) or body)
  elseif mode == 'collect' and collects then
    merged = record .. element(body)
  elseif mode == 'collect' then
    merged = string.char(codec * 32 + flags + COLLECTS) .. string.sub(record, 2, body_at - 1)
      .. element(string.sub(record, body_at)) .. element(body)
  end
  return merged
end

-- Put a waiting message off until the window of the message that merges into it is over, but no longer than max_wait after its own
-- has opened; nothing where that is no later. Returns its record, or `merged`, that of after the merge, if it was not written.
--- @inline
local function put_off(keys, target, score, record, merged, expiry, opened, range, max_wait, now)
  local store, was_due = keys[2], math.floor(tonumber(score))
  local due = math.max(was_due, math.min(now + range, opened + max_wait))
  if tonumber(score) >= TIMED_MIN and due > was_due then
    local _, has_priority = timed_fraction(tonumber(score))
    local later_score = next_timed_score(store, due, has_priority)
    merged = merged or record
    local later = expiry and write48(expiry + due - was_due) or ''
    merged = string.sub(merged, 1, 8) .. write48(due) .. later .. string.sub(merged, 15 + #later)
    redis.call('HSET', keys[3], target, merged)
    redis.call('ZADD', store, later_score, target)
    merged = nil
  end
  return merged
end

-- Store a message that opens a window; `due`: when it is over. Returns its acceptance number.
--- @inline
local function open_window(keys, given, at, priority, due, accepted, waiting, drop_lowest, channel, index, now)
  local slot, store, records, windows = keys[1], keys[2], keys[3], keys[4]
  local id, head, rest, body, key, mode = unpack(given, at + 1, at + 6)
  accepted = accepted + 1
  local expires = string.byte(head, 1) % 4 >= EXPIRES
  local after_due = expires and write48(due + read48(rest, 7)) .. string.sub(rest, 13) or string.sub(rest, 7)
  local new_score = next_timed_score(store, due, priority > 0 and 1 or 0)
  local first_due
  if is_awaited(waiting, now) then
    first_due = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  redis.call('HSET', records, id, head .. struct.pack('>I4', accepted % ACCEPTED_CYCLE) .. write48(due) .. after_due
    .. (mode == 'collect' and element(body) or body))
  redis.call('ZADD', store, new_score, id)
  if drop_lowest then
    drop_lowest()
  end
  redis.call('HSET', windows, key, id .. string.format('%.0f', now))
  redis.call('HSET', slot, 'accepted', accepted)
  if is_awaited(waiting, now) and (not first_due or due < tonumber(first_due)) then
    wake(slot, channel, index)
  end
  return accepted
end

-- Store a message, or merge it into the waiting one with the same merge key. `given` holds from at + 1 on: id, head,
-- envelope, body, merge key, mode, max_wait_ms, max_bytes; merge.lua describes them, and the answers.
--   keys: slot, StoreQueue, records, merge index, settled even, settled odd, failures, audit, large bodies
local function merge_message(keys, given, at, now, channel, index, stamp)
  local slot, store, records, windows = keys[1], keys[2], keys[3], keys[4]
  local id, head, _, body, key, mode = unpack(given, at + 1, at + 6)
  local priority, range, max_wait, max_bytes = check_merge(given, at)
  local created, accepted, waiting, capacity, dedup_ms, settled_turn, overflow, paused_send = unpack(redis.call('HMGET', slot,
    'created', 'accepted', 'waiting', 'capacity', 'dedup_ms', 'settled_turn', 'overflow', 'paused_send'))
  if created ~= stamp then
    fail(created and 'ANEW' or 'GONE', slot)
  end
  if paused_send then
    return { 0, 'P', '' }
  end
  accepted, capacity = tonumber(accepted or 0), tonumber(capacity)
  local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
  local open, waiting_now = redis.call('HGET', windows, key), redis.call('ZCARD', store)
  local duplicate = is_duplicate(keys, given, at, window, last_turn, now)
  if duplicate then
    return { accepted, 'd', '' }
  end
  local target = open and string.sub(open, 1, MEMBER)
  local score, record, expiry, waiting_key = find_target(keys, target, head, body, mode, max_bytes, now)
  if record then
    local merged = merged_record(record, head, body, mode, expiry, waiting_key)
    if max_wait > 0 then
      merged = put_off(keys, target, score, record, merged, expiry, tonumber(string.sub(open, MEMBER + 1)), range, max_wait, now)
    end
    if merged then
      redis.call('HSET', records, target, merged)
    end
    redis.call('HINCRBY', slot, 'merged', 1)
    local kept = window > 0 and kept_ids({ id })
    if kept then
      remember_settled(slot, keys[5], keys[6], window, last_turn, now, kept)
    end
    return { accepted, 'm', target }
  end

  local drop_lowest
  if capacity > 0 and waiting_now >= capacity then
    if overflow == 'drop_lowest' then
      --- @include "lib/drop_lowest"
      drop_lowest = plan_drop_lowest(slot, store, records, keys[9], keys[7], windows, keys[8], waiting_now + 1 - capacity,
        { id, head }, now)
    end
    if not drop_lowest then
      return { 0, 'F', '' }
    end
  end
  accepted = open_window(keys, given, at, priority, now + range, accepted, waiting, drop_lowest, channel, index, now)
  return { accepted, 's', '' }
end
