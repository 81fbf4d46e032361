--[[
cancel: withdraw waiting messages, and request the cancellation of deliveries. `dead` is only read.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   running              1: also messages in flight; 0: only waiting messages
ARGV[6..] for each of n messages its member (13 bytes), and '' for any delivery, or the receipt of
          the delivery to cancel; n is at most 200
Returns   a letter for each:
          1 it waited and is deleted
          r it is in flight: the request is stored and published; it ends as cancelled unless it is
          acked
          a an earlier call has requested the cancellation of this delivery
          o the receipt is not the receipt of the current delivery
          i it is in flight, and `running` is 0; q a query has it
          d it is in the DeadQueue; 0 not here, or named twice
Cost      O(n log L), L = messages waiting in the slot. The records are read if messages have merge
          keys, or the slot is audited.
Atomic    Only waiting messages are removed, with everything that belongs to them. If the sender
          keeps the id, it is remembered as settled, so a late repetition of the send stores
          nothing. A dedup key may be used again. A request is a field of the slot for this
          delivery. Scripts that give the delivery back end the message instead
          (lib/settle/remove_cancelled_from). The request is also published, so that the worker
          hears of it at once. A call that is sent twice gets the first answer again.
]]
--- @keys slot store prepare records dead failures merge settled0 settled1 audit bodies results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/envelope"
--- @include "lib/records/indexed_key"
--- @include "lib/leases/receipt"
--- @include "lib/member"
--- @include "lib/replay"
--- @include "lib/settle/drop_cancelled"
--- @include "lib/writes"
local BEFORE = 5 -- arguments before the messages
local CANCEL_MOST = 200
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local created, dedup_ms, settled_turn, audited, chunk = unpack(redis.call('HMGET', slot, 'created',
  'dedup_ms', 'settled_turn', 'audited', 'chunk'))
if not created then
  fail('GONE', slot)
end
local running = whole_number(ARGV[5], 0, 1, 'running') == 1
local n = (#ARGV - BEFORE) / 2
if n < 1 or n > CANCEL_MOST or n % 1 > 0 then
  fail('ARG', 'count')
end
local ids, scores, requests = {}, {}, {}

-- Return the letter for a message in flight, and note a new request.
local function look_at_delivery(id, score, receipt)
  if not running then
    return 'i'
  end
  if tonumber(score) >= QUERY_DEADLINE * 1000 then
    return 'q'
  end
  local delivery = tonumber(score) % 1000 -- as in lib/settle/cancel_requests
  if receipt ~= '' and tonumber(receipt) % 1000 ~= delivery then
    return 'o'
  end
  if tonumber(redis.call('HGET', slot, '~' .. id) or -1) == delivery then
    return 'a'
  end
  requests[#requests + 1] = { id, string.format('%.17g', delivery) }
  return 'r'
end

-- Return the letter for a message, and note what is to be done.
local function look_at(id, receipt)
  local waiting = redis.call('ZSCORE', store, id)
  if waiting and receipt ~= '' then
    return 'o'
  end
  if waiting then
    ids[#ids + 1], scores[#scores + 1] = id, waiting
    return '1'
  end
  local score = redis.call('ZSCORE', prepare, id)
  if score then
    return look_at_delivery(id, score, receipt)
  end
  return redis.call('ZSCORE', dead, id) and 'd' or '0'
end

local letters, seen = {}, {}
for i = 1, n do
  local id, receipt = ARGV[BEFORE + 2 * i - 1], ARGV[BEFORE + 2 * i]
  if receipt ~= '' and not tonumber(receipt) then
    fail('ARG', 'receipt')
  end
  letters[i] = seen[id] and '0' or look_at(id, receipt)
  seen[id] = true
end
local answer = table.concat(letters)
if #ids == 0 and #requests == 0 then
  return answer
end

-- Delete the waiting messages, with everything that belongs to them.
--- @inline
local function delete_waiting()
  check_cancelled(audited)
  local merge_keys = {}
  for i = 1, redis.call('HLEN', merge) > 0 and #ids or 0 do
    local _, _, key = envelope(redis.call('HGET', records, ids[i]) or '')
    merge_keys[#merge_keys + 1] = indexed_key(key, ids[i])
  end
  --- @include "lib/groups/leave_groups"
  local let_next_out = leaving_groups(ids, { scores = scores })
  redis.call('ZREM', store, unpack(ids))
  drop_cancelled(ids, audited, chunk, dedup_ms, settled_turn, now)
  if #merge_keys > 0 then
    redis.call('HDEL', merge, unpack(merge_keys))
  end
  if let_next_out and let_next_out() then
    --- @include "lib/wake/wake"
    wake_sleepers(now, ARGV[3], ARGV[4])
  end
end

-- Store the requests, and tell the workers.
--- @inline
local function store_requests()
  allow_oom(prepare)
  for i = 1, #requests do
    local id, delivery = requests[i][1], requests[i][2]
    if redis.call('HSET', slot, '~' .. id, delivery) == 1 then
      redis.call('HINCRBY', slot, 'cancelling', 1)
    end
    redis.pcall('PUBLISH', ARGV[3], 'cancel ' .. ARGV[4] .. ' ' .. delivery .. ' ' .. id)
  end
end

if #ids > 0 then
  delete_waiting()
end
if #requests > 0 then
  store_requests()
end
remember(ARGV[2], now, answer)
return answer
