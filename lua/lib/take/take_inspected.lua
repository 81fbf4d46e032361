-- Taking messages that may have expired or may be in the merge index.
--- @needs store dead merge bodies pending targets results keeping
--- @include "lib/records/envelope"
--- @include "lib/member"
--- @include "lib/slot_fields"

-- Return nil, or by position which messages have expired; and the merge keys whose entry names a
-- message of the batch.
--- @inline
local function inspect(batch, now)
  local merge_keys, expired = {}, nil
  for c = 1, #batch.to_inspect do
    local i = batch.to_inspect[c]
    local _, expiry, key = envelope(batch.records[i])
    local entry = key and redis.call('HGET', merge, key)
    if entry and string.sub(entry, 1, MEMBER) == batch.ids[i] then
      merge_keys[#merge_keys + 1] = key
    end
    if expiry and expiry <= now then
      expired = expired or {}
      expired[i] = true
    end
  end
  return expired, merge_keys
end

-- Remove the messages of a batch from the StoreQueue and the merge index. Drop the expired
-- messages. Sets `count` of the batch: how many messages are live. These are the first of the
-- batch.
--- @inline
local function take_inspected(take, batch)
  local expired, merge_keys = inspect(batch, take.now)
  redis.call('ZCARD', dead)
  redis.call('HLEN', bodies)
  if expired then
    redis.call('ZCARD', pending)
    redis.call('ZCARD', targets)
  end
  redis.call('HLEN', results)
  redis.call('ZCARD', keeping)
  redis.call('ZREM', store, unpack(batch.ids, 1, batch.count))
  if #merge_keys > 0 then
    redis.call('HDEL', merge, unpack(merge_keys))
  end
  if expired then
    --- @include "lib/take/take_expired"
    end_expired(take, split_expired(batch, expired, tonumber(take.fields[MAX_RETRIES])))
  end
end
