--[[
purge: delete messages of the StoreQueue or the DeadQueue for good, a page at a time. `queue` is the
StoreQueue or the DeadQueue.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   high                 largest score to delete, as for ZRANGEBYSCORE; ignored with members
ARGV[6]   limit                1 to 1000
ARGV[7..] members              only these, at most 1000, 13 bytes each; without members: the
          messages with the lowest scores
Returns   the number deleted; a number below the limit is the end
Cost      O(n log L), n = limit, L = messages of the queue. The records are read if messages have
          merge keys, or the slot is audited.
Atomic    A message is deleted with everything that belongs to it. Messages in flight are not
          touched. If the next message of a group goes out, consumers are woken. A call that is sent
          twice gets the first answer again and deletes no second page.
]]
--- @keys slot queue records failures merge audit bodies results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/drop_for_good"
--- @include "lib/records/envelope"
--- @include "lib/records/indexed_key"
--- @include "lib/replay"
--- @include "lib/results/note_outcomes"
local BEFORE = 6 -- arguments before the members
local now = clock(ARGV[1])
local limit = whole_number(ARGV[6], 1, MOST, 'limit')
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return tonumber(earlier_answer)
end
local created, audited, chunk = unpack(redis.call('HMGET', slot, 'created', 'audited', 'chunk'))
if not created then
  fail('GONE', slot)
end
if #ARGV > BEFORE + MOST then
  fail('ARG', 'count')
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', records)
redis.call('HLEN', failures)
redis.call('ZCARD', audit)
redis.call('HLEN', bodies)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
local any_merge_key = redis.call('HLEN', merge) > 0
local ids = {}
if #ARGV > BEFORE then
  local seen = {}
  for i = BEFORE + 1, #ARGV do
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
for i = 1, any_merge_key and #ids or 0 do
  local _, _, key = envelope(redis.call('HGET', records, ids[i]) or '')
  merge_keys[#merge_keys + 1] = indexed_key(key, ids[i])
end
local let_next_out
local is_store = string.sub(queue, -5) == 'store' -- dead letters have ended before
if is_store then
  local store = queue
  --- @include "lib/groups/leave_groups"
  let_next_out = leaving_groups(ids, { scores = redis.call('ZMSCORE', queue, unpack(ids)) })
end
local purged = redis.call('ZREM', queue, unpack(ids))
if is_store then
  note_outcomes(ids, now, 'p')
else
  note_outcomes(ids, now, 'p', { members_only = true })
end
drop_for_good(audited, tonumber(chunk), ids, now)
if #merge_keys > 0 then
  redis.call('HDEL', merge, unpack(merge_keys))
end
if let_next_out and let_next_out() then
  --- @include "lib/wake/wake"
  wake_sleepers(now, ARGV[3], ARGV[4])
end
redis.call('HINCRBY', slot, 'purged', purged)
remember(ARGV[2], now, purged)
return purged
