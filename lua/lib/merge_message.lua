-- Range-merge of one message, for merge and publish.
--- @include "lib/check"
--- @include "lib/member"
--- @include "lib/score_ranges"
--- @include "lib/timed_score"
--- @include "lib/record"
--- @include "lib/envelope"
--- @include "lib/settled"
--- @include "lib/wake"

-- Store a message, or merge it into the waiting one with the same merge key. `given` holds from at + 1 on: id, head,
-- envelope, body, merge key, mode, max_wait_ms, max_bytes; merge.lua describes them, and the answers.
--   keys: slot, StoreQueue, records, merge index, settled even, settled odd, failures, audit, large bodies
local function merge_message(keys, given, at, now, channel, index, created)
  local slot, store, records, windows = keys[1], keys[2], keys[3], keys[4]
  local id, head, rest, body, key, mode = unpack(given, at + 1, at + 6)
  if #id ~= MEMBER or #head ~= 4 then
    fail('ARG', 'id')
  end
  local priority = priority_of(head)
  if priority > 0 and (priority < PRIORITY_MIN or priority >= PRIORITY_END) then
    fail('ARG', 'priority')
  end
  local range = read48(rest, 1)
  local max_wait = whole_number(given[at + 7], 0, TIMED_MIN - 1, 'max_wait_ms')
  local max_bytes = whole_number(given[at + 8], 1, 16777216, 'max_bytes')
  if range < 1 or range >= TIMED_MIN then
    fail('ARG', 'time_range')
  end
  local s = redis.call('HMGET', slot, 'created', 'accepted', 'waiting', 'capacity', 'dedup_ms', 'settled_turn', 'overflow',
    'paused_send')
  if s[1] ~= created then
    fail(s[1] and 'ANEW' or 'GONE', slot)
  end
  if s[8] then
    return { 0, 'P', '' }
  end
  local accepted, window, last_turn = tonumber(s[2] or 0), tonumber(s[5]), tonumber(s[6])
  local duplicate = redis.call('HEXISTS', records, id) == 1
  local open = redis.call('HGET', windows, key)
  local waiting_now = redis.call('ZCARD', store)
  redis.call('SCARD', keys[5])
  redis.call('SCARD', keys[6])
  if duplicate then
    return { accepted, 'd', '' }
  end
  if window > 0 then
    local settled = find_settled(keys[5], keys[6], window, last_turn, now, given, at + 1, at + 1)
    if settled and settled[1] == 1 then
      return { accepted, 'd', '' }
    end
  end

  -- An element of a collected list.
  local function element(text)
    return struct.pack('>I4', #text) .. text
  end

  local target = open and string.sub(open, 1, MEMBER)
  local score = target and redis.call('ZSCORE', store, target)
  local record = score and redis.call('HGET', records, target)
  if score and not record then
    fail('RECORD', records)
  end
  local codec, collects, expiry, _, waiting_key = math.floor(string.byte(head, 1) / 32), false, nil, nil, nil
  if record then
    if #record >= 8 then
      _, expiry, waiting_key = envelope(record)
    end
    if not waiting_key then
      fail('RECORD', records)
    end
    collects = flagged(string.byte(record, 1), COLLECTS)
    if expiry and expiry <= now then
      record = nil -- it goes to the DeadQueue next: a message that merges into it now would be lost with it
    elseif mode == 'collect' and (#record + (collects and 4 or 8) + #body > max_bytes
        or math.floor(string.byte(record, 1) / 32) ~= codec) then
      record = nil -- the list is full, or of another codec: it stays as it is, and this message opens the next one
    end
  end
  if record then
    -- The waiting envelope stays, however the body behind it changes; and a list stays a list, so that producers of
    -- different modes leave a body that can be read.
    local merged
    local flags = string.byte(record, 1) % 32
    local body_at = 9 + 6 + (expiry and 6 or 0) + 2 + #waiting_key
    if flags >= 16 then
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
    if max_wait > 0 then
      local opened = tonumber(string.sub(open, MEMBER + 1))
      local due = math.max(math.floor(tonumber(score)), math.min(now + range, opened + max_wait))
      if tonumber(score) >= TIMED_MIN and due > math.floor(tonumber(score)) then
        local _, has_priority = timed_fraction(tonumber(score))
        local later_score = next_timed_score(store, due, has_priority)
        merged = merged or record
        local later = expiry and write48(expiry + due - math.floor(tonumber(score))) or ''
        merged = string.sub(merged, 1, 8) .. write48(due) .. later .. string.sub(merged, 15 + #later)
        redis.call('HSET', records, target, merged)
        redis.call('ZADD', store, later_score, target)
        merged = nil
      end
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

  local capacity, drop_lowest = tonumber(s[4]), nil
  local due = now + range
  if capacity > 0 and waiting_now >= capacity then
    if s[7] == 'drop_lowest' then
      --- @include "lib/drop_lowest"
      drop_lowest = plan_drop_lowest(slot, store, records, keys[9], keys[7], windows, keys[8], waiting_now + 1 - capacity,
        { id, head }, now)
    end
    if not drop_lowest then
      return { 0, 'F', '' }
    end
  end
  accepted = accepted + 1
  local expires = string.byte(head, 1) % 4 >= 2
  local after_due = expires and write48(due + read48(rest, 7)) .. string.sub(rest, 13) or string.sub(rest, 7)
  local new_score = next_timed_score(store, due, priority > 0 and 1 or 0)
  local first_due = is_awaited(s[3], now) and redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  redis.call('HSET', records, id,
    head .. struct.pack('>I4', accepted % 4294967296) .. write48(due) .. after_due .. (mode == 'collect' and element(body) or body))
  redis.call('ZADD', store, new_score, id)
  if drop_lowest then
    drop_lowest()
  end
  redis.call('HSET', windows, key, id .. string.format('%.0f', now))
  redis.call('HSET', slot, 'accepted', accepted)
  if is_awaited(s[3], now) and (not first_due or due < tonumber(first_due)) then
    wake(slot, channel, index)
  end
  return { accepted, 's', '' }
end
