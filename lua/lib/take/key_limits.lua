--[[
The limits of a slot for each key, that is each value of one header. They are the end of the slot's
`limit`, after what lib/take/room_in reads, as `rmq/kernel/core/limits.py` writes it:
`:<rate>:<per>:<burst>:<most>:<header>`. A message without that header has none of these limits.

What a key has in flight is counted where it stands: in the records of the members of the
PrepareQueue, at each take. So nothing can drift, and no other script knows of keys. The price is
that a slot with a concurrency for each key has at most IN_FLIGHT_MOST messages in flight.

A rate is a token bucket, kept as the time at which it will be full, epoch ms: in the zset `rates`,
for each key whose bucket is not full; takes and tidy forget the others, some at a time. The time of
a token is rounded up to 1 / 1024 ms, so that sums are exact and the rate is never exceeded. While
KEYS_MOST buckets are not full, other keys wait.

A take that finds messages of held keys alone notes that in the field `held` of the slot, for a
second at most: `<until>:<quiet>:<accepted>:<in flight>:<frees>`. Until then there is nothing to
take; but only until `quiet` if a message was accepted or the number in flight has changed, and not
at all if it has changed and `frees` is 1: what is settled frees a key then. Quiet is in proportion
to how many records the take has read, and sends wake nobody before it: so sends to a held key cost
Redis a few percent of its time, whatever waits there.
]]
--- @needs store prepare records rates
--- @include "lib/check"
--- @include "lib/records/envelope"
local KEYS_MOST, IN_FLIGHT_MOST = 100000, 1000

-- The limits for each key; nil where the slot has none. `interval`: ms for one token, or false.
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

-- The key of a message; nil where it has none.
local function key_of(record, header)
  local at = headers_at(record)
  local a, b = string.byte(record, at or 1, at and at + 1 or 0)
  if not b then
    return nil
  end
  local readable, headers = pcall(cmsgpack.unpack, string.sub(record, at + 2, at + 1 + a * 256 + b))
  local key = readable and type(headers) == 'table' and headers[header]
  return type(key) == 'string' and key or nil
end

-- Call `visit` with the key of each message, or nil, while less than READ_BYTES of records are
-- read; return whether these are all. `chunk`: how many records are read at once.
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

-- What the keys of a slot have in flight and which tokens they have, for `admit`. `full`: the slot
-- has so much in flight that it gives nothing; `room`: how many messages it gives; `read`: how many
-- records were read; `set_back`: buckets that a take has to note, as ZADD takes them.
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

-- Whether a message of this key may go now; then it counts. `next_at` of the keys is when the first
-- token comes that was missing.
local function admit(keys, key)
  local limit, taken = keys.limit, keys.taken[key] or 0
  if keys.full or limit.most > 0 and (keys.in_flight[key] or 0) + taken >= limit.most then
    return false
  end
  if limit.interval then
    local since = keys.since[key] -- when the bucket is full if nothing is taken
    if not since then
      since = tonumber(redis.call('ZSCORE', rates, key) or 0)
      if since <= keys.now then -- full
        if keys.new <= 0 then
          keys.next_at = math.min(keys.next_at, keys.now + 1000)
          return false
        end
        since, keys.new = keys.now, keys.new - 1
      elseif since - keys.now > limit.burst * limit.interval then
        -- The clock was set back: see lib/take/room_in.
        since = keys.now + limit.burst * limit.interval
        keys.set_back[#keys.set_back + 1], keys.set_back[#keys.set_back + 2] = since, key
      end
      keys.since[key] = since
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

-- Forget up to `limit` buckets that are full again; return whether more may be.
local function forget_full_buckets(now, limit)
  local full = redis.call('ZRANGEBYSCORE', rates, '-inf', now, 'LIMIT', 0, limit)
  if #full > 0 then
    redis.call('ZREM', rates, unpack(full))
  end
  return #full == limit
end

-- Take the tokens of these messages, which were admitted.
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

-- The note that nothing waits but messages of held keys.
local function held_note(keys, accepted, in_flight)
  local from = string.format('%.0f', keys.now + 1)
  local later = redis.call('ZRANGEBYSCORE', store, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local due = later[2] and math.floor(tonumber(later[2])) or math.huge
  local quiet = keys.now + math.floor(keys.read / 100) * 10
  local till, frees = math.min(keys.next_at, due, keys.now + 1000), keys.limit.most > 0 and 1 or 0
  return string.format('%.0f:%.0f:%s:%d:%d', till, quiet, accepted or '0', in_flight, frees)
end

-- The gate, as next_ready_in takes it, while the note holds; else nil. Those who wait hear of what
-- is settled, and, if it is not quiet, of sends.
local function held_gate(note, now, accepted, in_flight)
  local till, quiet, was_accepted, was_in_flight, frees =
    string.match(note or '', '^(%d+):(%d+):(%d+):(%d+):(%d)$')
  local moved = tonumber(was_in_flight) ~= in_flight
  if not till or moved and frees == '1' then
    return nil
  end
  till, quiet = tonumber(till), tonumber(quiet)
  if now >= till or till - now > 1000 then
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
