--[[
restore: put dead letters from the trash back into the DeadQueue. They keep their time of death,
unless they would soon be dropped.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3..] members, at most 1000, 13 bytes each.
Returns   a character for each member: 1 restored, 0 not in the trash
Cost      O(n log L)
Atomic    If the topic drops dead letters after a time, the next `tidy` does not drop a restored
          letter. Its time of death becomes later: at least a day is left, or the whole time if that
          is shorter. A letter is in the trash or in the DeadQueue, never in both. Works while
          Redis is at maxmemory. A call that is sent twice gets the first answer again.
]]
--- @keys slot dead trash deaths
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/dead_letters/trash"
--- @include "lib/writes"
local IDS_FROM = 3 -- first argument of the members
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local created, dead_retention_ms = unpack(redis.call('HMGET', slot, 'created', 'dead_retention_ms'))
if not created then
  fail('GONE', slot)
end
if #ARGV < IDS_FROM or #ARGV >= IDS_FROM + MOST then
  fail('ARG', 'count')
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', dead)
redis.call('HLEN', deaths)
local retention = tonumber(dead_retention_ms or 0)
local earliest = retention > 0 and now - retention + math.min(retention, DAY_MS) or 0
local outcomes, ids, add, seen = {}, {}, {}, {}
for i = IDS_FROM, #ARGV do
  local id = ARGV[i]
  local outcome = '0'
  if not seen[id] and redis.call('ZSCORE', trash, id) then
    outcome = '1'
    seen[id] = true
    ids[#ids + 1] = id
    local died = tonumber(redis.call('HGET', deaths, id) or now)
    add[#add + 1], add[#add + 2] = string.format('%.0f', math.max(died, earliest)), id
  end
  outcomes[#outcomes + 1] = outcome
end
if #ids > 0 then
  allow_oom(trash)
  redis.call('ZREM', trash, unpack(ids))
  redis.call('HDEL', deaths, unpack(ids))
  redis.call('ZADD', dead, unpack(add))
  count_trash()
  remember(ARGV[2], now, table.concat(outcomes))
end
return table.concat(outcomes)
