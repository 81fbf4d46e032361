--[[
drop_expired: drop waiting messages that have expired, or send them to the DeadQueue. For slots
without consumers.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   rank                 place in the StoreQueue, from 0, of the first message to look at
ARGV[5]   limit                1 to 1000 messages to look at
Returns   {number of expired messages; rank of the next page, or -1 at the end; when the first of
          the other messages expires, epoch ms, or 0}
Cost      O(log L + n), n = limit, with their records, 4 MiB at most
Atomic    Types are checked before the first write, and the first write frees memory. Messages that
          are due later stay, as they do for a consumer. A second run continues. Ranks change if
          messages are sent or received in between. The next pass finds a message that this pass
          missed.
]]
--- @keys slot store records dead failures merge audit bodies pending targets results keeping
--- @include "lib/audit"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/record"
--- @include "lib/dead_letters/dead_letters"
--- @include "lib/records/envelope"
--- @include "lib/records/indexed_key"
--- @include "lib/results/note_outcomes"
--- @include "lib/groups/leave_groups"
local now = clock(ARGV[1])
local rank = whole_number(ARGV[4], 0, EXACT_MOST, 'rank')
local limit = whole_number(ARGV[5], 1, MOST, 'limit')
local created, slot_chunk, on_expire, dead_retention_ms, audited, dead_to = unpack(redis.call(
  'HMGET', slot, 'created', 'chunk', 'on_expire', 'dead_retention_ms', 'audited', 'dead_to'))
if not created then
  fail('GONE', slot)
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', records)
redis.call('ZCARD', dead)
redis.call('HLEN', failures)
redis.call('HLEN', merge)
redis.call('ZCARD', audit)
redis.call('HLEN', bodies)
if dead_to then
  redis.call('ZCARD', pending)
  redis.call('ZCARD', targets)
end
-- A key of a wrong type stops the script here.
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
local page = redis.call('ZRANGE', store, rank, rank + limit - 1, 'WITHSCORES')
local members, score_of = {}, {}
for i = 1, #page, 2 do
  if tonumber(page[i + 1]) >= now + 1 then
    break
  end
  members[#members + 1], score_of[page[i]] = page[i], page[i + 1]
end
local ids, expired, merge_keys = {}, {}, {}
local soonest, looked, bytes = 0, 0, 0
local chunk = tonumber(slot_chunk)
while looked < #members and bytes < READ_BYTES do
  local upto = math.min(#members, looked + chunk)
  local batch = redis.call('HMGET', records, unpack(members, looked + 1, upto))
  for i = 1, #batch do
    local record, id = batch[i], members[looked + i]
    bytes = bytes + (record and #record or 0)
    local expiry, key, _
    if record and #record >= FIXED then -- prepare handles a record that is cut short
      _, expiry, key = envelope(record)
    end
    if expiry and expiry <= now then
      ids[#ids + 1], expired[#expired + 1] = id, record
      merge_keys[#merge_keys + 1] = indexed_key(key, id)
    elseif expiry and (soonest == 0 or expiry < soonest) then
      soonest = expiry
    end
  end
  looked = upto
end
local is_end = looked == #members and #members < limit
local reply = { #ids, is_end and -1 or rank + looked - #ids, soonest }
if #ids == 0 then
  return reply
end
local entries, scores = redis.call('HMGET', failures, unpack(ids)), {}
for i = 1, #ids do
  scores[i] = score_of[ids[i]]
end
local let_next_out = leaving_groups(ids, { died = on_expire ~= 'drop', scores = scores })

-- Let the next messages of groups out, and wake sleepers for them.
local function release_groups()
  if let_next_out and let_next_out() then
    --- @include "lib/wake/wake"
    wake_sleepers(now, ARGV[2], ARGV[3])
  end
end

if on_expire == 'drop' and audited then
  account_for('accounted', add_numbers(expired, number_of, {}), now)
end
redis.call('ZREM', store, unpack(ids))
if #merge_keys > 0 then
  redis.call('HDEL', merge, unpack(merge_keys))
end
if on_expire == 'drop' then
  note_outcomes(ids, now, 'e')
  drop_records(ids)
  redis.call('HDEL', failures, unpack(ids))
  redis.call('HINCRBY', slot, 'expired', #ids)
  release_groups()
  return reply
end
local delivery_counts = {}
for i = 1, #ids do
  delivery_counts[i] = entries[i] and string.byte(entries[i], 2) or 0
end
local died = { ids = ids, delivery_counts = delivery_counts, reason = 'x', details = '' }
died.dead_to = dead_to
add_dead(died, audited, tonumber(dead_retention_ms), now)
release_groups()
return reply
