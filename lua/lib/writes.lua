-- Writes that avoid a limit or a slow path of Redis.

-- Let the script write while Redis is at maxmemory. Redis stops checking memory after a write that
-- needs no memory. To remove a member that is missing needs no memory.
--- @inline
local function allow_oom(zset)
  redis.call('ZREM', zset, '')
end

-- Write a field of a hash that has this value already, also at maxmemory. A repeated call must
-- write: WAIT covers only the writes of its connection, and passes at once if the repetition wrote
-- nothing.
--- @inline
local function write_again(hash, field, value)
  redis.call('HDEL', hash, '')
  redis.call('HSET', hash, field, value)
end

-- A member or a field of 65 bytes, too long for a packed list.
local LONG_NAME = '-----------------------------------------------------------------'
local UNPACKED = 7000 -- arguments of one command: Lua unpacks 7999

-- Add many members to a sorted set that may be small. Redis keeps up to 128 members as a packed
-- list. There every insert and every look-up reads score texts one by one: a batch of 100 costs
-- four times as much as in the form for large sets. A member that is too long for the packed list
-- makes Redis change the form at once, for as long as the key lives. `count`: number of members of
-- the set, if the caller knows it.
--- @inline
local function add_many(zset, scores_and_members, count)
  local packed = (count or redis.call('ZCARD', zset)) <= 128
  for from = 1, #scores_and_members, UNPACKED do
    local last = math.min(from + UNPACKED - 1, #scores_and_members)
    if packed and from == 1 then
      redis.call('ZADD', zset, 0, LONG_NAME, unpack(scores_and_members, 1, last))
    else
      redis.call('ZADD', zset, unpack(scores_and_members, from, last))
    end
  end
  if packed then
    redis.call('ZREM', zset, LONG_NAME)
  end
end

-- Set many fields of a hash that may be small, for the same reason as add_many.
--- @inline
local function set_many(hash, fields_and_values)
  local packed = redis.call('HLEN', hash) <= 512
  if packed then
    redis.call('HSET', hash, LONG_NAME, '', unpack(fields_and_values))
    redis.call('HDEL', hash, LONG_NAME)
  else
    redis.call('HSET', hash, unpack(fields_and_values))
  end
end

-- Set any number of fields of a hash, and remove others. The hash is not small.
--- @inline
local function change_fields(hash, fields_and_values, removed)
  for from = 1, #fields_and_values, UNPACKED do
    local last = math.min(#fields_and_values, from + UNPACKED - 1)
    redis.call('HSET', hash, unpack(fields_and_values, from, last))
  end
  if #removed > 0 then
    redis.call('HDEL', hash, unpack(removed))
  end
end

-- Make Redis keep a hash that is not empty in the form for large hashes. Then look-ups of many
-- missing fields are fast.
--- @inline
local function widen(hash)
  if redis.call('HLEN', hash) <= 512 then
    redis.call('HSET', hash, LONG_NAME, '')
    redis.call('HDEL', hash, LONG_NAME)
  end
end
