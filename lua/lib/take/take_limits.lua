-- The limits of a slot (lib/take/room_in) and those for each key (lib/take/key_limits), in a take.
--- @needs slot store prepare
--- @include "lib/take/key_limits"
--- @include "lib/take/room_in"
--- @include "lib/slot_fields"
--- @include "lib/writes"

-- Return nil, or a gate that says when messages may be taken again (next_ready_in describes it).
-- With a gate, no message may be taken. Lowers `limit` of the take to the number that the limits
-- allow. Sets `bucket` and `key_limit` of the take.
local function open_limits(take)
  local fields = take.fields
  local lacking, held = unpack(redis.call('HMGET', slot, 'bucket', 'held'))
  local in_flight = redis.call('ZCARD', prepare)
  local room, gate, bucket = room_in(fields[LIMIT], lacking, in_flight, take.now)
  if bucket and bucket.set_back then
    allow_oom(store)
    redis.call('HSET', slot, 'bucket', string.format('%.0f:%.0f', bucket[1], bucket[2]))
  end
  take.limit, take.bucket = math.min(take.limit, room), bucket
  take.key_limit = key_limit_in(fields[LIMIT])
  if gate or not take.key_limit then
    return gate
  end
  return gate_of_note(held, take.now, fields[ACCEPTED], in_flight)
end

-- Take the tokens of the messages of a batch. Return nil, or a gate that says when the next
-- messages may be taken.
local function take_tokens(take, batch)
  local fields, now, bucket, keys = take.fields, take.now, take.bucket, batch.key_state
  local in_flight = redis.call('ZCARD', prepare) + batch.count
  local lacking = bucket and string.format('%.0f:%.0f', bucket[1], bucket[2] + batch.count)
  if lacking then
    redis.call('HSET', slot, 'bucket', lacking)
  end
  local _, gate = room_in(fields[LIMIT], lacking, in_flight, now)
  if not keys then
    return gate
  end
  take_key_tokens(keys, batch.records)
  if not keys.are_limited then
    redis.call('HDEL', slot, 'held')
    return gate
  end
  local note = limits_note(keys, fields[ACCEPTED], in_flight)
  redis.call('HSET', slot, 'held', note)
  return gate or gate_of_note(note, now, fields[ACCEPTED], in_flight)
end
