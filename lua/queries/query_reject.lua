--[[
query_reject: send the oldest messages in the log of a query to the DeadQueue. `store` is for slots
with groups, whose next messages go out.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: the process that runs the query
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6]   upto                 up to this number
ARGV[7]   limit                1 to 1000
ARGV[8]   details              the error for the failure entries, at most 64 KiB
Returns   {number of messages rejected, number of ids that left the log}. Fewer ids than the limit
          leave the log if no more are left up to `upto`.
          If another owner runs the query, nothing changes, and two values follow:
           ms until its ownership ends,
           the other owner.
Cost      O(k log L), k = limit, L = members of the slot
Atomic    A message leaves the log in the step that rejects it. So a message that is redriven and
          received again is in the log once. A message only leaves the log if its lease has expired,
          if it is in flight for another consumer, or if query_fail took it out. The first write
          frees memory. A second run continues.
]]
--- @keys slot prepare records dead failures audit query querylog bodies querymarks store pending targets results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/dead_letters/dead_letters"
--- @include "lib/settle/check_dead_keys"
--- @include "lib/wake/wake"
--- @include "lib/take/in_order"
--- @include "lib/groups/leave_groups"
--- @include "lib/query"
local now = clock(ARGV[1])
check_names(ARGV[2], ARGV[3])
local upto = whole_number(ARGV[6], 0, NUMBER_MOST, 'upto')
local limit = whole_number(ARGV[7], 1, MOST, 'limit')
local created, max_retries, dead_retention_ms, blocked, audited, dead_to = unpack(redis.call(
  'HMGET', slot, 'created', 'max_retries', 'dead_retention_ms', 'blocked', 'audited', 'dead_to'))
if not created then
  fail('GONE', slot)
end
local state = read_query()
local other_ms, other = other_owner(state, ARGV[3], now)
local before_log, tail, expired_to = log_range(state, 0)
if other then
  return { 0, 0, other_ms, other }
end
local size = math.max(0, math.min(limit, math.min(upto, tail) - before_log))
local log_ids = size > 0 and redis.call('LRANGE', querylog, 0, size - 1) or {}
local scores = size > 0 and redis.call('ZMSCORE', prepare, unpack(log_ids)) or {}
local done, marked = tonumber(state[SETTLED] or 0), read_marks(before_log + 1, before_log + size)
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', prepare)
check_dead_keys(audited, dead_to)
local ids, delivery_counts = {}, {}
for i = 1, #log_ids do
  local number, score = before_log + i, scores[i] and tonumber(scores[i])
  if number > expired_to and not marked[number] and score and score >= QUERY_DEADLINE * 1000 then
    ids[#ids + 1] = log_ids[i]
    delivery_counts[#ids] = math.max(1, tonumber(max_retries) - math.floor(score % 1000) + 1)
  end
end
allow_oom(prepare)
if #ids > 0 then
  local let_next_out = leaving_groups(ids, { died = true })
  redis.call('ZREM', prepare, unpack(ids))
  local died = { ids = ids, delivery_counts = delivery_counts, reason = 'r', dead_to = dead_to }
  died.details = string.sub(ARGV[8], 1, DETAILS_BYTES)
  add_dead(died, audited, tonumber(dead_retention_ms), now)
  local any_out = let_next_out and let_next_out()
  if unblock(blocked, now) then
    wake(ARGV[4], ARGV[5])
  elseif any_out then
    wake_sleepers(now, ARGV[4], ARGV[5])
  end
end
if size > 0 then
  redis.call('LTRIM', querylog, size, -1)
  drop_marks(before_log + size)
end
local ends = size > 0 and before_log + size or math.min(upto, tail)
if ends > done then
  redis.call('HSET', query, 'settled', ends)
end
return { #ids, size }
