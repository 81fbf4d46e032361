-- Adding members to a sorted set, the way that costs least for as many as there are.
local FEW, EVERY = 8, 16

-- Add members; `scores_and_members` in turn, `count`: how many members they are.
--- @inline
local function add_members(zset, scores_and_members, count)
  if count < FEW then
    redis.call('ZADD', zset, unpack(scores_and_members))
  else
    --- @include "lib/writes"
    add_many(zset, scores_and_members)
  end
end

-- Add the nth of many single members. Every sixteenth is added as a batch is: many single ones in a small set would cost as much.
--- @inline
local function add_single(zset, score, member, nth)
  if nth % EVERY == 0 then
    --- @include "lib/writes"
    add_many(zset, { score, member })
  else
    redis.call('ZADD', zset, score, member)
  end
end

-- Set fields of a hash; `fields_and_values` in turn, `count`: how many fields they are.
--- @inline
local function set_fields(hash, fields_and_values, count)
  if count < FEW then
    redis.call('HSET', hash, unpack(fields_and_values))
  else
    --- @include "lib/writes"
    set_many(hash, fields_and_values)
  end
end
