-- merging: range-merge of one message, for merge and publish. `given` holds from at + 1 on: id, head, envelope,
-- body, merge key, mode, max_wait_ms, most bytes; merge.lua tells of each, and what the answers are.
--   keys: slot, StoreQueue, records, merge index, settled even, settled odd, failures, audit
--- @include "lib/families"
--- @include "lib/timed"
--- @include "lib/record"
--- @include "lib/known"
--- @include "lib/settled"
--- @include "lib/wake"
local function merging(keys, given, at, now, channel, place, created)
  local slot, store, records, index = keys[1], keys[2], keys[3], keys[4]
  local id, head, rest, body, key, mode = unpack(given, at + 1, at + 6)
  if #id ~= 16 or #head ~= 4 then
    fail('ARG', 'id')
  end
  local asked = priority_of(head)
  if asked > 0 and (asked < PRIORITY_MIN or asked >= PRIORITY_END) then
    fail('ARG', 'priority')
  end
  local range = read48(rest, 1)
  local max_wait = whole(given[at + 7], 0, TIMED_MIN - 1, 'max_wait_ms')
  local most = whole(given[at + 8], 1, 16777216, 'most bytes')
  if range < 1 or range >= TIMED_MIN then
    fail('ARG', 'time_range')
  end
  local s = redis.call('HMGET', slot, 'created', 'accepted', 'waiting', 'capacity', 'dedup_ms', 'settled_turn', 'overflow')
  if s[1] ~= created then
    fail(s[1] and 'ANEW' or 'GONE', slot)
  end
  local accepted, window, turn_seen = tonumber(s[2] or 0), tonumber(s[5]), tonumber(s[6])
  local here = redis.call('HEXISTS', records, id) == 1
  local held = redis.call('HGET', index, key)
  local waiting_now = redis.call('ZCARD', store)
  redis.call('SCARD', keys[5])
  redis.call('SCARD', keys[6])
  if here then
    return { accepted, 'd', '' }
  end
  if window > 0 then
    local known = settled_known(keys[5], keys[6], window, turn_seen, now, given, at + 1, at + 1)
    if known and known[1] == 1 then
      return { accepted, 'd', '' }
    end
  end

  local function piece(text)
    return struct.pack('>I4', #text) .. text
  end

  local target = held and string.sub(held, 1, 16)
  local score = target and redis.call('ZSCORE', store, target)
  local record = score and redis.call('HGET', records, target)
  if score and not record then
    fail('RECORD', records)
  end
  local codec, collects, expiry, _, key_held = math.floor(string.byte(head, 1) / 32), false, nil, nil, nil
  if record then
    if #record >= 8 then
      _, expiry, key_held = envelope(record)
    end
    if not key_held then
      fail('RECORD', records)
    end
    collects = flagged(string.byte(record, 1), COLLECTS)
    if expiry and expiry <= now then
      record = nil -- it waits for its burial: what merged into it now would be lost with it
    elseif mode == 'collect' and (#record + (collects and 4 or 8) + #body > most
        or math.floor(string.byte(record, 1) / 32) ~= codec) then
      record = nil -- the list is full, or of another codec: it goes as it is, and this message opens the next one
    end
  end
  if record then
    -- The waiting envelope stays, whatever becomes of the body behind it; and a list stays a list, so that
    -- producers of different modes leave a body that can be read.
    local grown
    local flags = string.byte(record, 1) % 32
    local at = 9 + 6 + (expiry and 6 or 0) + 2 + #key_held
    if flags >= 16 then
      at = at + 2 + struct.unpack('>I2', record, at)
    end
    if mode == 'last' then
      grown = string.char(codec * 32 + flags) .. string.sub(record, 2, at - 1) .. (collects and piece(body) or body)
    elseif mode == 'collect' and collects then
      grown = record .. piece(body)
    elseif mode == 'collect' then
      grown = string.char(codec * 32 + flags + COLLECTS) .. string.sub(record, 2, at - 1)
        .. piece(string.sub(record, at)) .. piece(body)
    end
    if max_wait > 0 then
      local opened = tonumber(string.sub(held, 17))
      local due = math.max(math.floor(tonumber(score)), math.min(now + range, opened + max_wait))
      if tonumber(score) >= TIMED_MIN and due > math.floor(tonumber(score)) then
        local _, ask = timed_fraction(tonumber(score))
        local later_score = in_line(store, due, ask)
        grown = grown or record
        local later = expiry and write48(expiry + due - math.floor(tonumber(score))) or ''
        grown = string.sub(grown, 1, 8) .. write48(due) .. later .. string.sub(grown, 15 + #later)
        redis.call('HSET', records, target, grown)
        redis.call('ZADD', store, later_score, target)
        grown = nil
      end
    end
    if grown then
      redis.call('HSET', records, target, grown)
    end
    redis.call('HINCRBY', slot, 'merged', 1)
    if window > 0 then
      settled_remember(slot, keys[5], keys[6], window, turn_seen, now, { id })
    end
    return { accepted, 'm', target }
  end

  local capacity, make_room = tonumber(s[4]), nil
  local due = now + range
  if capacity > 0 and waiting_now >= capacity then
    if s[7] == 'drop_lowest' then
      --- @include "lib/room"
      make_room = room_for(slot, store, records, keys[7], index, keys[8], waiting_now + 1 - capacity, due, now)
    end
    if not make_room then
      return { 0, 'F', '' }
    end
  end
  accepted = accepted + 1
  local expires = string.byte(head, 1) % 4 >= 2
  local tail = expires and write48(due + read48(rest, 7)) .. string.sub(rest, 13) or string.sub(rest, 7)
  local score_of_new = in_line(store, due, asked > 0 and 1 or 0)
  local sooner = awaited(s[3], now) and redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  redis.call('HSET', records, id,
    head .. struct.pack('>I4', accepted % 4294967296) .. write48(due) .. tail .. (mode == 'collect' and piece(body) or body))
  redis.call('ZADD', store, score_of_new, id)
  if make_room then
    make_room()
  end
  redis.call('HSET', index, key, id .. string.format('%.0f', now))
  redis.call('HSET', slot, 'accepted', accepted)
  if awaited(s[3], now) and (not sooner or due < tonumber(sooner)) then
    wake(slot, channel, place)
  end
  return { accepted, 's', '' }
end
