-- add_wide: adds many members to a sorted set that may be small. Redis keeps up to 128 members as a packed
-- list, in which every insert and every look-up reads score texts one by one; a batch of 100 then costs
-- four times what the same batch costs in the form for large sets. A member too long for the list makes
-- Redis change the form at once, for as long as the key lives.
local WIDE = string.rep('-', 65)

local function add_wide(zset, scores_and_members)
  local packed = redis.call('ZCARD', zset) <= 128
  if packed then
    redis.call('ZADD', zset, 0, WIDE)
  end
  redis.call('ZADD', zset, unpack(scores_and_members))
  if packed then
    redis.call('ZREM', zset, WIDE)
  end
end
