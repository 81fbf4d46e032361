--[[
purge: delete messages from the StoreQueue or the DeadQueue for good, a page at a time. `queue` is the StoreQueue or the
DeadQueue.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   high                 largest score to delete, as for ZRANGEBYSCORE; ignored where ids are given
ARGV[6]   limit                1 to 1000
ARGV[7..] members              only these, at most 1000, 13 bytes each; none: the lowest scores first
Returns   how many were deleted; less than the limit is the end
Cost      O(n log L), and reading the records where the merge index is not empty, or the slot is audited
Atomic    A message is deleted with everything that belongs to it. Messages in flight are not touched. Sleepers
          are woken if the next message of a group goes out. Sent twice with one number, it gives the first answer and
          deletes no second page.
]]
--- @keys slot queue records failures merge audit bodies
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/drop_for_good"
--- @include "lib/records/envelope"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/replay"
local now = clock(ARGV[1])
local limit = whole_number(ARGV[6], 1, MOST, 'limit')
local before = replayed(ARGV[2])
if before then
  return tonumber(before)
end
local created, audited, chunk = unpack(redis.call('HMGET', slot, 'created', 'audited', 'chunk'))
if not created then
  fail('GONE', slot)
end
if #ARGV > 1006 then
  fail('ARG', 'count')
end
redis.call('HLEN', records)
redis.call('HLEN', failures)
redis.call('ZCARD', audit)
redis.call('HLEN', bodies)
local any_merge_key = redis.call('HLEN', merge) > 0
local ids = {}
if #ARGV > 6 then
  local seen = {}
  for i = 7, #ARGV do
    if not seen[ARGV[i]] and redis.call('ZSCORE', queue, ARGV[i]) then
      ids[#ids + 1], seen[ARGV[i]] = ARGV[i], true
    end
  end
else
  ids = redis.call('ZRANGEBYSCORE', queue, '-inf', ARGV[5], 'LIMIT', 0, limit)
end
if #ids == 0 then
  return 0
end
local merge_keys = {}
if any_merge_key then
  for i = 1, #ids do
    local record = redis.call('HGET', records, ids[i])
    if record and #record >= FIXED then
      local _, _, key = envelope(record)
      local entry = key and redis.call('HGET', merge, key)
      if entry and string.sub(entry, 1, MEMBER) == ids[i] then
        merge_keys[#merge_keys + 1] = key
      end
    end
  end
end
local bring_up
if string.sub(queue, -5) == 'store' then
  local store = queue
  --- @include "lib/groups/leave_groups"
  bring_up = leaving_groups(ids, nil, nil, redis.call('ZMSCORE', queue, unpack(ids)))
end
local purged = redis.call('ZREM', queue, unpack(ids))
drop_for_good(audited, tonumber(chunk), ids, now)
if #merge_keys > 0 then
  redis.call('HDEL', merge, unpack(merge_keys))
end
if bring_up and bring_up() then
  --- @include "lib/wake/wake"
  wake_sleepers(now, ARGV[3], ARGV[4])
end
redis.call('HINCRBY', slot, 'purged', purged)
remember(ARGV[2], now, purged)
return purged
