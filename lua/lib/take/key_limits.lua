--[[
The limits of a slot for each key, that is each value of one header. They are the end of the slot's
`limit`, after what lib/take/room_in reads, as `rmq/kernel/core/delivery_limits.py` writes it:
`:<rate>:<per>:<burst>:<most>:<header>`. A message without that header has none of these limits.

At each take, the messages in flight of a key are counted in the records of the PrepareQueue's
members. So the count cannot drift, and no other script has to know keys. The price: a slot with a
concurrency for each key has at most IN_FLIGHT_MOST messages in flight.

A rate is a token bucket. It is stored as the time at which it will be full, epoch ms: in the zset
`rates`, for each key whose bucket is not full. Takes and tidy remove full buckets, some at a time.
The time of a token is rounded up to 1 / 1024 ms, so that sums are exact and the rate is never
exceeded. While KEYS_MOST buckets are not full, other keys wait.

A take may find only messages whose keys are at their limit. It writes a note into the field `held`
of the slot, for at most a second: `<until>:<quiet>:<accepted>:<in flight>:<frees>`. Takes then
return without a search:
- before `quiet`, always, unless the next rule says otherwise
- if `frees` is 1 and the number in flight has changed, never: a settled message frees its key
- before `until`, if no message was accepted since then and the number in flight is the same

The quiet time is in proportion to the records that the take has read, and sends wake no consumer
before it ends. So sends to a key at its limit cost Redis a few percent of its time, whatever waits
there.
]]
--- @needs store prepare records rates
--- @include "lib/check"
--- @include "lib/records/envelope"
local KEYS_MOST, IN_FLIGHT_MOST = 100000, 1000
local NOTE_MS = 1000 -- how long a note is valid at most
local QUIET_MS, QUIET_READS = 10, 100 -- a quiet time has QUIET_MS for each QUIET_READS records

-- Parse the limits for each key; nil if the slot has none. `interval`: ms for one token, or false.
local function key_limit_in(limit)
  local rate, per, burst, most, header =
    string.match(limit, '^%d+:%d+:%d+:%d+:(%d+):(%d+):(%d+):(%d+):(.+)$')
  if not header then
    if not string.find(limit, '^%d+:%d+:%d+:%d+$') then
      fail('ARG', 'limit')
    end
    return nil
  end
  rate = tonumber(rate)
  local interval = rate > 0 and math.ceil(tonumber(per) * 1024 / rate) / 1024
  return { interval = interval, burst = tonumber(burst), most = tonumber(most), header = header }
end

-- Return the key of a message, or nil.
local function key_of(record, header)
  local at = headers_at(record)
  -- The size of the headers; nil if there are none.
  local a, b = string.byte(record, at or 1, at and at + 1 or 0)
  if not b then
    return nil
  end
  local readable, headers = pcall(cmsgpack.unpack, string.sub(record, at + 2, at + 1 + a * 256 + b))
  local key = readable and type(headers) == 'table' and headers[header]
  return type(key) == 'string' and key or nil
end

-- Call `visit` with the key of each message, or nil, until READ_BYTES of records are read. Return
-- whether all messages were visited. `chunk`: how many records are read at once.
local function read_keys(ids, chunk, header, visit)
  local bytes = 0
  for from = 1, #ids, chunk do
    if bytes >= READ_BYTES then
      return false
    end
    local page = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + chunk - 1)))
    for i = 1, #page do
      bytes = bytes + #(page[i] or '')
      visit(page[i] and key_of(page[i], header) or nil)
    end
  end
  return true
end

-- Return the state of the keys of a slot, for `admit`:
-- - in_flight: number of messages in flight by key
-- - since, taken: by key, when its bucket is full, and how many messages this take has admitted
-- - full: whether too many messages are in flight, so that the slot gives none
-- - room: how many messages the slot gives
-- - read: how many records were read
-- - new: how many further keys may get a bucket
-- - set_back: buckets that the take has to write, as ZADD takes them
local function open_keys(key_limit, chunk, now)
  local keys = {
    limit = key_limit, now = now, in_flight = {}, since = {}, taken = {}, set_back = {},
    room = IN_FLIGHT_MOST, read = 0, next_at = math.huge,
    new = key_limit.interval and KEYS_MOST - redis.call('ZCOUNT', rates, now, '+inf') or 0,
  }
  if key_limit.most > 0 then
    local ids = redis.call('ZRANGE', prepare, 0, IN_FLIGHT_MOST - 1)
    keys.room, keys.read = IN_FLIGHT_MOST - #ids, #ids
    keys.full = keys.room == 0 or not read_keys(ids, chunk, key_limit.header, function(key)
      if key then
        keys.in_flight[key] = (keys.in_flight[key] or 0) + 1
      end
    end)
    keys.room = keys.full and 0 or keys.room
  end
  return keys
end

-- Return when the bucket of a key is full if this take takes nothing more. Return nil if the key
-- gets no bucket now.
--- @inline
local function bucket_of(keys, key)
  local now, most_ahead = keys.now, keys.limit.burst * keys.limit.interval
  local since = keys.since[key]
  if since then
    return since
  end
  since = tonumber(redis.call('ZSCORE', rates, key) or 0)
  if since <= now and keys.new <= 0 then
    keys.next_at = math.min(keys.next_at, now + NOTE_MS)
    return nil
  end
  if since <= now then -- full
    since, keys.new = now, keys.new - 1
  elseif since - now > most_ahead then
    -- The clock was set back: see lib/take/room_in.
    since = now + most_ahead
    keys.set_back[#keys.set_back + 1], keys.set_back[#keys.set_back + 2] = since, key
  end
  keys.since[key] = since
  return since
end

-- Return whether a message of this key may be taken now, and count it if so. Sets `next_at` of the
-- keys: when the first missing token arrives.
local function admit(keys, key)
  local limit, taken = keys.limit, keys.taken[key] or 0
  if keys.full or limit.most > 0 and (keys.in_flight[key] or 0) + taken >= limit.most then
    return false
  end
  if limit.interval then
    local since = bucket_of(keys, key)
    if not since then
      return false
    end
    local free_at = since + (taken + 1 - limit.burst) * limit.interval
    if free_at > keys.now then
      keys.next_at = math.min(keys.next_at, math.ceil(free_at))
      return false
    end
  end
  keys.taken[key] = taken + 1
  return true
end

-- Remove up to `limit` full buckets. Return whether there may be more.
local function forget_full_buckets(now, limit)
  local full = redis.call('ZRANGEBYSCORE', rates, '-inf', now, 'LIMIT', 0, limit)
  if #full > 0 then
    redis.call('ZREM', rates, unpack(full))
  end
  return #full == limit
end

-- Take the tokens of messages that were admitted. `taken`: their records.
local function take_key_tokens(keys, taken)
  local limit, full_at, written, names = keys.limit, {}, {}, {}
  for i = 1, #taken do
    local key = limit.interval and key_of(taken[i], limit.header)
    if key then
      names[#names + 1] = not full_at[key] and key or nil
      full_at[key] = (full_at[key] or keys.since[key]) + limit.interval
    end
  end
  for i = 1, #names do
    written[2 * i - 1], written[2 * i] = full_at[names[i]], names[i]
  end
  if #names > 0 then
    forget_full_buckets(keys.now, 2 * #names)
    redis.call('ZADD', rates, unpack(written))
  end
end

-- Return the text of the note that all waiting messages have keys at their limit.
local function limits_note(keys, accepted, in_flight)
  local from = string.format('%.0f', keys.now + 1)
  local later = redis.call('ZRANGEBYSCORE', store, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local due = later[2] and math.floor(tonumber(later[2])) or math.huge
  local quiet = keys.now + math.floor(keys.read / QUIET_READS) * QUIET_MS
  local till = math.min(keys.next_at, due, keys.now + NOTE_MS)
  local frees = keys.limit.most > 0 and 1 or 0
  return string.format('%.0f:%.0f:%s:%d:%d', till, quiet, accepted or '0', in_flight, frees)
end

-- Return the gate of a note, as next_ready_in takes it; nil if the note is no longer valid.
-- Consumers that wait are woken when a message is settled and, after the quiet time, by sends.
local function gate_of_note(note, now, accepted, in_flight)
  local till, quiet, was_accepted, was_in_flight, frees =
    string.match(note or '', '^(%d+):(%d+):(%d+):(%d+):(%d)$')
  local moved = tonumber(was_in_flight) ~= in_flight
  if not till or moved and frees == '1' then
    return nil
  end
  till, quiet = tonumber(till), tonumber(quiet)
  if now >= till or till - now > NOTE_MS then
    return nil
  end
  if now < quiet then
    return { at = math.min(till, quiet), field = 'blocked' }
  end
  if moved or was_accepted ~= (accepted or '0') then
    return nil
  end
  return { at = till, field = 'blocked', sends_wake = true }
end
