--[[
The trash: purged dead letters that can be restored for a time. Their records and failure entries stay; the hash `deaths`
keeps their time of death, since the score in the trash is when they go for good.
]]
--- @include "lib/large_bodies"

-- Delete messages that are in no queue any more, and count them as purged. `audit`: the key where the slot is audited, else
-- nil. The first write frees memory.
local function drop_for_good(slot, records, failures, bodies, audit, page, ids, now)
  if audit then
    --- @include "lib/audit"
    account_for(slot, audit, 'accounted', read_numbers(records, ids, page), now)
  end
  drop_records(slot, records, bodies, ids)
  redis.call('HDEL', failures, unpack(ids))
  redis.call('HINCRBY', slot, 'purged', #ids)
end

-- Delete up to `limit` letters of the trash whose time has come; return how many.
local function empty_trash(slot, trash, deaths, records, failures, bodies, audit, page, now, limit)
  local ids = redis.call('ZRANGEBYSCORE', trash, '-inf', now, 'LIMIT', 0, limit)
  if #ids > 0 then
    redis.call('ZREM', trash, unpack(ids))
    redis.call('HDEL', deaths, unpack(ids))
    drop_for_good(slot, records, failures, bodies, audit, page, ids, now)
  end
  return #ids
end
