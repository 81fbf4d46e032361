-- Limits for each key, in a take.
--- @needs slot store prepare records rates
--- @include "lib/bounds"
--- @include "lib/take/key_limits"
--- @include "lib/slot_fields"
--- @include "lib/writes"

-- Choose the messages of a batch that the limits for each key allow, at most `most`. A message
-- whose key is at its limit is skipped; in order, the messages behind it also wait. At most
-- READ_BYTES of records are read. Returns positions, and whether a message was skipped.
local function choose_free(take, ids, keys, most)
  local KEY_PAGE = 100
  local ordered = take.ordered_until
  local chunk, header = math.min(tonumber(take.fields[CHUNK]), KEY_PAGE), take.key_limit.header
  local chosen, skipped, bytes, at = {}, keys.full, 0, 1
  while at <= #ids and #chosen < most and bytes < READ_BYTES and not (ordered and skipped) do
    local last = math.min(#ids, at + chunk - 1)
    local page = redis.call('HMGET', records, unpack(ids, at, last))
    for i = 1, #page do
      local record = page[i] or ''
      bytes, keys.read = bytes + #record, keys.read + 1
      local key = key_of(record, header)
      if key and not admit(keys, key) then
        skipped = true
      elseif not (ordered and skipped) then
        chosen[#chosen + 1] = at
      end
      at = at + 1
      if #chosen == most then
        break
      end
    end
  end
  return chosen, skipped
end

-- Keep the messages of a batch that the limits for each key allow. Sets `key_state` of the batch
-- for take_tokens: the state of open_keys, and `are_limited`: whether all other waiting messages
-- have keys at their limit. Sets `gate` of the batch if no message may be taken.
local function skip_limited(take, batch)
  local fields, now = take.fields, take.now
  local keys = open_keys(take.key_limit, tonumber(fields[CHUNK]), now)
  local most = math.min(take.limit, keys.room)
  local chosen, skipped = choose_free(take, batch.ids, keys, most)
  local ids, retries_left = {}, batch.retries_left and {}
  for i = 1, #chosen do
    ids[i] = batch.ids[chosen[i]]
    if retries_left then
      retries_left[i] = batch.retries_left[chosen[i]]
    end
  end
  batch.ids, batch.retries_left, batch.key_state = ids, retries_left, keys
  batch.on_top = skipped and 0 or batch.on_top
  batch.due_first = skipped and 0 or batch.due_first
  if #keys.set_back > 0 then
    allow_oom(store)
    redis.call('ZADD', rates, unpack(keys.set_back))
  end
  keys.are_limited = skipped and #ids < take.limit
  if keys.are_limited and #ids == 0 then
    local in_flight = redis.call('ZCARD', prepare)
    local note = limits_note(keys, fields[ACCEPTED], in_flight)
    batch.gate = gate_of_note(note, now, fields[ACCEPTED], in_flight)
    allow_oom(store)
    redis.call('HSET', slot, 'held', note)
  end
end
