--[[
cancel: withdraw a waiting message, or request the cancellation of a delivery. `dead` is only
read.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   member               13 bytes: the id without slot and checksum
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6]   running              1: also if it is in flight; 0: only if it waits
ARGV[7]   receipt        ''    any delivery; or the receipt of the delivery to cancel
Returns   cancelled: it waited and is deleted
          requested: it is in flight; the consumer is told, and it ends as cancelled unless it is
          acked
          already_requested: an earlier call has requested the cancellation of this delivery
          old_delivery: the receipt is not the receipt of the current delivery
          in_flight: it is delivered, and `running` is 0; in_query: a query has it
          dead: it is in the DeadQueue; gone: not here
Cost      O(log L), L = messages waiting in the slot
Atomic    Only a waiting message is removed, with everything that belongs to it. If the sender keeps
          the id, it is remembered as settled, so a late repetition of the send stores nothing. A
          dedup key may be used again. A request is a field of the slot for this delivery. Scripts
          that give the delivery back end the message instead (lib/settle/end_cancelled). The
          request is also published, so that the worker hears of it at once. A call that is sent
          twice gets the first answer again.
]]
--- @keys slot store prepare records dead failures merge settled0 settled1 audit bodies
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/envelope"
--- @include "lib/records/indexed_key"
--- @include "lib/records/drop_records"
--- @include "lib/leases/receipt"
--- @include "lib/member"
--- @include "lib/replay"
--- @include "lib/send/dedup_window"
--- @include "lib/writes"
local id = ARGV[3]
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local created, dedup_ms, settled_turn, audited = unpack(redis.call('HMGET', slot, 'created',
  'dedup_ms', 'settled_turn', 'audited'))
if not created then
  fail('GONE', slot)
end
local running, receipt = whole_number(ARGV[6], 0, 1, 'running') == 1, ARGV[7]
if receipt ~= '' and not tonumber(receipt) then
  fail('ARG', 'receipt')
end

-- Request the cancellation of a delivery, and tell its worker. Return the answer.
--- @inline
local function request_cancel(score)
  local delivery = tonumber(score) % 1000 -- as in lib/settle/cancel_requests
  if receipt ~= '' and tonumber(receipt) % 1000 ~= delivery then
    return 'old_delivery'
  end
  if tonumber(redis.call('HGET', slot, '~' .. id) or -1) == delivery then
    return 'already_requested'
  end
  local text = string.format('%.17g', delivery)
  allow_oom(prepare)
  if redis.call('HSET', slot, '~' .. id, text) == 1 then
    redis.call('HINCRBY', slot, 'cancelling', 1)
  end
  remember(ARGV[2], now, 'requested')
  redis.pcall('PUBLISH', ARGV[4], 'cancel ' .. ARGV[5] .. ' ' .. text .. ' ' .. id)
  return 'requested'
end

local waiting = redis.call('ZSCORE', store, id)
if not waiting then
  local score = redis.call('ZSCORE', prepare, id)
  if not score then
    return redis.call('ZSCORE', dead, id) and 'dead' or 'gone'
  end
  if not running then
    return 'in_flight'
  end
  if tonumber(score) >= FAR * 1000 then
    return 'in_query'
  end
  local answer = request_cancel(score)
  return answer
end
if receipt ~= '' then
  return 'old_delivery'
end
local record = redis.call('HGET', records, id)
redis.call('HLEN', failures)
redis.call('HLEN', bodies)
redis.call('SCARD', settled0)
redis.call('SCARD', settled1)
local _, _, key = envelope(record or '')
local merge_key = indexed_key(key, id)
if audited then
  --- @include "lib/audit"
  account_for('accounted', add_numbers({ record }, number_of, {}), now)
end
--- @include "lib/groups/leave_groups"
local let_next_out = leaving_groups({ id }, nil, nil, { waiting })
redis.call('ZREM', store, id)
drop_records({ id })
redis.call('HDEL', failures, id)
if merge_key then
  redis.call('HDEL', merge, merge_key)
end
if let_next_out and let_next_out() then
  --- @include "lib/wake/wake"
  wake_sleepers(now, ARGV[4], ARGV[5])
end
redis.call('HINCRBY', slot, 'cancelled', 1)
local window = tonumber(dedup_ms)
if window > 0 and stays_settled(id) then
  remember_settled(window, tonumber(settled_turn), now, { id })
end
remember(ARGV[2], now, 'cancelled')
return 'cancelled'
