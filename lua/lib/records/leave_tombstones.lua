-- Tombstones of offloaded bodies, which lib/records/large_bodies describes.
--- @needs slot bodies

-- Leave tombstones. `released`: the field of the slot.
--- @inline
local function leave_tombstones(references, released)
  local first = redis.call('HINCRBY', slot, 'offloaded', #references) - #references
  if tonumber(released or 0) > first then -- written late, for a slot that had been deleted
    redis.call('HSET', slot, 'released', first)
  end
  for i = 1, #references do
    redis.call('HSET', bodies, 'gone:' .. first + i, references[i])
  end
end
