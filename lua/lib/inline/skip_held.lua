--[[
skip_held: of the messages that take_messages picked, keep those that may go by the limits for each key, for
take_messages. In order, what is behind a held message waits, too; else it is passed over. At most 4 MiB of records
are read.

Reads:     slot, store, prepare, records, rates: keys
           s: the fields of the slot, from take_fields
           now, limit, hold, key_limit, chunk, ids, retries_left, on_top, keys, TAKE_BYTES
Writes:    ids: the messages that go
           retries_left, on_top
           keys: what open_keys returns, with `held`: whether nothing waits behind these but messages of held keys
           gate: where none goes
Declares:  KEY_PAGE, want, chosen, left, skipped, read_bytes, at
Returns for the caller: no
]]
--- @include "lib/check"
--- @include "lib/key_limits"
--- @include "lib/writes"
local KEY_PAGE = 100
keys = open_keys(key_limit, prepare, records, rates, chunk, now)
local want, chosen, left = math.min(limit, keys.room), {}, retries_left and {}
local skipped, read_bytes, at = keys.full, 0, 1
while at <= #ids and #chosen < want and read_bytes < TAKE_BYTES and not (hold and skipped) do
  local page = redis.call('HMGET', records, unpack(ids, at, math.min(#ids, at + math.min(chunk, KEY_PAGE) - 1)))
  for i = 1, #page do
    local record = page[i]
    if not record or #record < 8 then
      fail('RECORD', records)
    end
    read_bytes, keys.read = read_bytes + #record, keys.read + 1
    local key = key_of(record, key_limit.header)
    if key and not admit(keys, key) then
      skipped = true
    elseif #chosen < want and not (hold and skipped) then
      chosen[#chosen + 1] = ids[at]
      if left then
        left[#chosen] = retries_left[at]
      end
    end
    at = at + 1
    if #chosen == want then
      break
    end
  end
end
if #keys.set_back > 0 then
  allow_oom(store)
  redis.call('ZADD', rates, unpack(keys.set_back))
end
on_top = on_top and not skipped
keys.held = skipped and #chosen < limit
ids, retries_left = chosen, left
if keys.held and #chosen == 0 then
  local in_flight = redis.call('ZCARD', prepare)
  local note = held_note(keys, store, s[7], in_flight)
  gate = held_gate(note, now, s[7], in_flight)
  allow_oom(store)
  redis.call('HSET', slot, 'held', note)
end
