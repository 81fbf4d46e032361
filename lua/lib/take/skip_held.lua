-- Limits for each key, in a take.
--- @needs slot store prepare records rates
--- @include "lib/bounds"
--- @include "lib/take/key_limits"
--- @include "lib/slot_fields"
--- @include "lib/writes"

-- Of messages that were picked, keep those that may go by the limits for each key. In order, what is behind a held message waits,
-- too; else it is passed over. At most READ_BYTES of records are read. Returns what goes on as `ids`, `retries_left` and `on_top`
-- (lib/take/pick_messages); nil, or when messages may be taken again, where none goes; and what open_keys returns, with `held`:
-- whether nothing waits behind these but messages of held keys.
--- @inline
local function skip_held(fields, key_limit, ids, retries_left, on_top, limit, hold, now)
  local KEY_PAGE = 100
  local chunk, gate = math.min(tonumber(fields[CHUNK]), KEY_PAGE), nil
  local key_state = open_keys(key_limit, tonumber(fields[CHUNK]), now)
  local want, chosen, left = math.min(limit, key_state.room), {}, retries_left and {}
  local skipped, bytes, at = key_state.full, 0, 1
  while at <= #ids and #chosen < want and bytes < READ_BYTES and not (hold and skipped) do
    local page = redis.call('HMGET', records, unpack(ids, at, math.min(#ids, at + chunk - 1)))
    for i = 1, #page do
      local record = page[i] or ''
      bytes, key_state.read = bytes + #record, key_state.read + 1
      local key = key_of(record, key_limit.header)
      if key and not admit(key_state, key) then
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
  if #key_state.set_back > 0 then
    allow_oom(store)
    redis.call('ZADD', rates, unpack(key_state.set_back))
  end
  key_state.held = skipped and #chosen < limit
  if key_state.held and #chosen == 0 then
    local in_flight = redis.call('ZCARD', prepare)
    local note = held_note(key_state, fields[ACCEPTED], in_flight)
    gate = held_gate(note, now, fields[ACCEPTED], in_flight)
    allow_oom(store)
    redis.call('HSET', slot, 'held', note)
  end
  return chosen, left, skipped and 0 or on_top, gate, key_state
end
