-- Add members to a sorted set, or fields to a hash, in the cheapest way for their number.
local FEW, EVERY = 8, 16

-- Add members to a sorted set. `count`: number of members in the list of scores and members.
--- @inline
local function add_members(zset, scores_and_members, count)
  if count < FEW then
    redis.call('ZADD', zset, unpack(scores_and_members))
  else
    --- @include "lib/writes"
    add_many(zset, scores_and_members)
  end
end

-- Add the nth of many single members. Every sixteenth member is added as a batch is: many single
-- members in a small set would cost as much as a batch does.
--- @inline
local function add_single(zset, score, member, nth)
  if nth % EVERY == 0 then
    --- @include "lib/writes"
    add_many(zset, { score, member })
  else
    redis.call('ZADD', zset, score, member)
  end
end

-- Set fields of a hash. `count`: number of fields in the list of fields and values.
--- @inline
local function set_fields(hash, fields_and_values, count)
  if count < FEW then
    redis.call('HSET', hash, unpack(fields_and_values))
  else
    --- @include "lib/writes"
    set_many(hash, fields_and_values)
  end
end
