-- Add members to a sorted set, or fields to a hash, in the cheapest way for their number.
local FEW = 8 -- members or fields; fewer are added by one plain command
local EVERY = 16 -- of single members, the number that is added as a batch

-- Add members to a sorted set. `count`: number of members in the list.
--- @inline
local function add_members(zset, scores_and_members, count)
  if count < FEW then
    redis.call('ZADD', zset, unpack(scores_and_members))
  else
    --- @include "lib/writes"
    add_many(zset, scores_and_members)
  end
end

-- Add one member to a sorted set that gets many single members; `nth` is its number. Every
-- sixteenth member is added as a batch, by add_many, which gives Redis the cheap form of the set.
--- @inline
local function add_single(zset, score, member, nth)
  if nth % EVERY == 0 then
    --- @include "lib/writes"
    add_many(zset, { score, member })
  else
    redis.call('ZADD', zset, score, member)
  end
end

-- Set fields of a hash. `count`: number of fields in the list.
--- @inline
local function set_fields(hash, fields_and_values, count)
  if count < FEW then
    redis.call('HSET', hash, unpack(fields_and_values))
  else
    --- @include "lib/writes"
    set_many(hash, fields_and_values)
  end
end
