--[[
Failure entries: the last attempt to handle a message, and the attempts before it. The Python twin
is rmq/kernel/core/failure.py.

The failures hash has an entry for each message that has failed:

  byte 1      deliveries left; 0 if the message is dead
  byte 2      deliveries made since the message was sent, or redriven
  byte 3      reason: f failed, l lease expired, r rejected, u undecodable, x message expired,
              n no handler, d redriven
  byte 4      flags: 1 earlier attempts follow; 8 the details belong to an earlier attempt
  bytes 5-10  when, epoch ms
  if flag 1   attempts since the message was sent (2 bytes), number of items (1 byte), size of the
              items (2 bytes), the items
  rest        details: the consumer's error, msgpack of [error, traceback, worker]

Items are earlier attempts, the newest first. An item has the reason (1 byte), flags (1 byte), the
time (6 bytes), error, traceback and worker. Each of these texts is behind its length (2 bytes).

A text that the next newer attempt has is left out. Flags 1, 2 and 4 say that for the error, the
traceback and the worker. Flag 16 says that the traceback is the same without its last lines, which
are the error. Flag 8 is as above. An expired lease and a redrive are no attempts and have no
number.

A damaged entry is read as UNREADABLE: one attempt, in 1970, with the error "unreadable".
]]
--- @needs failures
--- @include "lib/settle/failures"
--- @include "lib/records/record_bytes"
local DETAILS_BYTES = 65536 -- of the details of an attempt that are kept
local KEPT_MOST, HISTORY_BYTES = 50, 8192
local TEXT_BYTES = { 1024, 2048, 256 } -- of the error, the traceback and the worker of an item
-- A call of Redis costs as much as the rest of a failure, so entries are read and written many at a
-- time. Each has up to 72 KiB.
local ENTRIES_AT_ONCE = 64
-- Flags of an entry and of its items. SAME_TEXTS is the sum of the flags 1, 2 and 4.
local HAS_EARLIER, SAME_TEXTS, DETAILS_ARE_EARLIER, SAME_FRAMES = 1, 7, 8, 16
-- Positions in an entry. If there are earlier attempts, their counts are followed by the items.
local COUNTS_AT, ITEMS_AT = 11, 16
local ATTEMPT_HEAD = 8 -- bytes of an item before its texts
local LEASE_EXPIRED = 108 -- the reason l as a byte
local ATTEMPTS_MOST = 65535 -- of which an entry counts the attempts
local UNREADABLE = '\0\1f\0\0\0\0\0\0\0\146\170unreadable\160'

-- Split an entry into when, flags, details, and earlier attempts: a table with the number of
-- `attempts` since the message was sent, how many items are `kept`, and the `items`.
local function read_entry(entry)
  if is_damaged(entry) then
    entry = UNREADABLE
  end
  local at, flags = string.sub(entry, 5, 10), string.byte(entry, 4)
  if flags % 2 ~= HAS_EARLIER then
    local earlier = { attempts = string.byte(entry, 2), kept = 0, items = '' }
    return at, flags, string.sub(entry, COUNTS_AT), earlier
  end
  local attempts, kept, bytes = struct.unpack('>I2BI2', entry, COUNTS_AT)
  local items = string.sub(entry, ITEMS_AT, ITEMS_AT - 1 + bytes)
  local earlier = { attempts = attempts, kept = kept, items = items }
  return at, flags, string.sub(entry, ITEMS_AT + bytes), earlier
end

-- Return error, traceback and worker of details. Details in another form are returned as the error.
local function texts_of(details)
  local readable, texts = pcall(cmsgpack.unpack, details)
  if not readable or type(texts) ~= 'table' then
    return { details, '', '' }
  end
  for i = 1, 3 do
    if type(texts[i]) ~= 'string' then
      texts[i] = ''
    end
  end
  return texts
end

-- Return a traceback without its last lines if these are the error, else nil.
local function frames_of(texts)
  local text, traceback = texts[1], texts[2]
  if #text > 0 and #text <= TEXT_BYTES[1] and string.sub(traceback, -#text - 1) == text .. '\n' then
    return string.sub(traceback, 1, -#text - 2)
  end
end

-- Return the flags and the texts of an item. `newer`: the details of the attempt after it.
local function item_texts(newer, details)
  if newer == details then
    return SAME_TEXTS, ''
  end
  local flags, kept, after, texts = 0, '', texts_of(newer), texts_of(details)
  for i = 1, 3 do
    if after[i] == texts[i] then
      flags = flags + 2 ^ (i - 1)
    elseif i == 2 and frames_of(texts) and frames_of(texts) == frames_of(after) then
      flags = flags + SAME_FRAMES
    else
      -- The end of a traceback says more than its beginning.
      local most = TEXT_BYTES[i]
      local text = i == 2 and string.sub(texts[i], -most) or string.sub(texts[i], 1, most)
      kept = kept .. struct.pack('>I2', #text) .. text
    end
  end
  return flags, kept
end

-- Return the newest items that are within the limits, and their number.
local function newest_items(items)
  local kept, at = 0, 1
  while kept < KEPT_MOST and at <= #items do
    local flags, next_at = string.byte(items, at + 1) or SAME_TEXTS, at + ATTEMPT_HEAD
    for i = 0, 2 do
      if math.floor(flags / 2 ^ i) % 2 == 0 and (i ~= 1 or flags < SAME_FRAMES) then
        local high, low = string.byte(items, next_at, next_at + 1)
        next_at = next_at + 2 + (high or 0) * 256 + (low or 0)
      end
    end
    if next_at > HISTORY_BYTES + 1 then
      break
    end
    kept, at = kept + 1, next_at
  end
  return string.sub(items, 1, at - 1), kept
end

-- Return the number of attempts since the message was sent, after `made` deliveries.
--- @inline
local function count_attempts(attempts, former_made, made)
  return math.max(0, math.min(ATTEMPTS_MOST, attempts - former_made + made))
end

-- Return the entry of a message after another attempt. `entry`: its entry before, or false.
-- `details`: false keeps the details of the attempt before.
local function failure_entry(entry, deliveries_left, made, reason, details, now)
  local details_flag = details and 0 or DETAILS_ARE_EARLIER
  local head = string.char(deliveries_left, made) .. reason
  if not entry then
    return head .. '\0' .. write48(now) .. (details or '')
  end
  if is_damaged(entry) then
    entry = UNREADABLE
  end
  local former_made, former_reason, flags = string.byte(entry, 2, 4)
  if flags == HAS_EARLIER and details and reason ~= 'l' and reason ~= 'd' then
    -- Usually the same error comes again. Then the entry only gets one more item.
    local attempts, kept, bytes = struct.unpack('>I2BI2', entry, COUNTS_AT)
    local size = bytes + ATTEMPT_HEAD
    local fits = kept < KEPT_MOST and size <= HISTORY_BYTES
    if fits and string.sub(entry, ITEMS_AT + bytes) == details then
      local count = count_attempts(attempts, former_made, made)
      local item = struct.pack('>I2BI2BB', count, kept + 1, size, former_reason, SAME_TEXTS)
      return head .. string.char(HAS_EARLIER) .. write48(now) .. item
        .. string.sub(entry, 5, 10) .. string.sub(entry, ITEMS_AT)
    end
  end
  local at, before, earlier
  at, flags, before, earlier = read_entry(entry)
  local attempts, kept, items = earlier.attempts, earlier.kept, earlier.items
  details = details or before
  local former_details_flag = flags - flags % DETAILS_ARE_EARLIER
  if reason == 'l' and former_reason == LEASE_EXPIRED and former_made == made then
    details_flag = former_details_flag -- query_rollback has noted this delivery and its time
  else
    local item_flags, texts = item_texts(details, before)
    local item = string.char(former_reason, item_flags + former_details_flag) .. at .. texts
    items, kept = item .. items, kept + 1
    if kept > KEPT_MOST or #items > HISTORY_BYTES then
      items, kept = newest_items(items)
    end
    at = write48(now)
  end
  if kept == 0 then
    return head .. string.char(details_flag) .. at .. details
  end
  if reason ~= 'd' then
    local count = count_attempts(attempts, former_made, made)
    attempts = count
  end
  local counts = struct.pack('>I2BI2', attempts, kept, #items)
  return head .. string.char(details_flag + HAS_EARLIER) .. at .. counts .. items .. details
end

-- Write the failure entries of several messages that have failed in the same way. The
-- deliveries left are by position.
local function note_failures(ids, deliveries_left, max_retries, reason, details, now)
  for first = 1, #ids, ENTRIES_AT_ONCE do
    local last = math.min(first + ENTRIES_AT_ONCE - 1, #ids)
    local entries, noted = redis.call('HMGET', failures, unpack(ids, first, last)), {}
    for i = first, last do
      local left, entry = deliveries_left[i], entries[i - first + 1]
      local made = math.max(0, max_retries - left + 1)
      noted[#noted + 1] = ids[i]
      noted[#noted + 1] = failure_entry(entry, left, made, reason, details, now)
    end
    redis.call('HSET', failures, unpack(noted))
  end
end
