-- widen: before many members go into a small sorted set. Redis keeps up to 128 members as a packed list,
-- in which every insert and every look-up reads score texts one by one; a batch of 100 then costs four
-- times what the same batch costs in the form for large sets. A member too long for the list makes Redis
-- change the form at once, for as long as the key lives.
local WIDE = string.rep('-', 65)

local function widen(zset)
  if redis.call('ZCARD', zset) <= 128 then
    redis.call('ZADD', zset, 0, WIDE)
    return true
  end
end
