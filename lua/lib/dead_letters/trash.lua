--[[
The trash: purged dead letters that can be restored for a time. Their records and failure entries
stay; the hash `deaths` keeps their time of death, since the score in the trash is when they go for
good. The field `trashed` of the slot counts them, so that a take knows which failure entries are
theirs (lib/settle/count_failed).
]]
--- @needs slot trash deaths
--- @include "lib/records/drop_for_good"

-- Count the letters in the trash, after some came or went.
local function count_trash()
  local count = redis.call('ZCARD', trash)
  if count > 0 then
    redis.call('HSET', slot, 'trashed', count)
  else
    redis.call('HDEL', slot, 'trashed')
  end
end

-- Delete up to `limit` letters of the trash whose time has come, count them as purged, and return
-- how many. The first write frees memory. `audited`: whether the slot is.
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
