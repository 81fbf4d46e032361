--[[
The trash: purged dead letters that can be restored for a time. Their records and failure entries
stay. Their score in the trash is when they are deleted, so the hash `deaths` keeps their time of
death. The field `trashed` of the slot counts them: a take subtracts their failure entries
(lib/settle/count_failed).
]]
--- @needs slot trash deaths
--- @include "lib/records/drop_for_good"

-- Store the number of letters in the trash, after it has changed.
local function count_trash()
  local count = redis.call('ZCARD', trash)
  if count > 0 then
    redis.call('HSET', slot, 'trashed', count)
  else
    redis.call('HDEL', slot, 'trashed')
  end
end

-- Delete up to `limit` letters of the trash whose time has come, count them as purged, and return
-- how many were deleted. The first write frees memory. `audited`: the field of the slot.
local function empty_trash(audited, page, now, limit)
  local ids = redis.call('ZRANGEBYSCORE', trash, '-inf', now, 'LIMIT', 0, limit)
  if #ids > 0 then
    redis.call('ZREM', trash, unpack(ids))
    redis.call('HDEL', deaths, unpack(ids))
    drop_for_good(audited, page, ids, now)
    redis.call('HINCRBY', slot, 'purged', #ids)
    count_trash()
  end
  return #ids
end
