--[[
fail_deliveries: give failed deliveries back, for nack and rollback: a message with retries remaining goes to the
StoreQueue again, another to the DeadQueue.

Reads:     KEYS: 1 to 6 and 8 as nack has them
           slot, store, prepare, failures: keys
           audit: the key where the slot is audited, else nil
           s: max_retries, retry, jitter, waiting, dead_retention_ms, ordered and blocked, from place 2 on
           now, now_us
           ids, receipts: the deliveries, one at least, and their receipts as text
           wait: ms until the retry, or false for the topic's policy
           reason, details: a letter, and for each delivery the text of its error, of which 64 KiB are kept; nil: it has none
           channel, index: for waking consumers
Writes:    nothing
Declares:  letters: for each delivery r retry or d dead
           dead_count: how many went to the DeadQueue
           max_retries, in_order
Returns for the caller: no
]]
--- @include "lib/dead_letters"
--- @include "lib/given_back"
--- @include "lib/retry"
--- @include "lib/in_order"
--- @include "lib/wake"
local letters, dead_count, max_retries = {}, 0, tonumber(s[2])
local in_order = s[7] and read_places(slot, s[7])
math.randomseed(now_us % 2147483647)
redis.call('ZREM', prepare, unpack(ids))
for i = 1, #ids do
  local receipt = tonumber(receipts[i])
  local left = math.floor(receipt % 1000)
  local made, text = max_retries - left + 1, details[i] and string.sub(details[i], 1, 65536)
  if left == 0 then
    letters[i] = 'd'
    dead_count = dead_count + 1
    add_dead(slot, KEYS[5], KEYS[4], KEYS[8], failures, audit, ids[i], now, made, reason, text, tonumber(s[6]))
  else
    letters[i] = 'r'
    local pause = wait or retry_wait(s[3], tonumber(s[4]), made)
    local score = in_order and retry_score(in_order, KEYS[4], ids[i], receipt, pause > 0 and now + pause or 0)
    add_retry(slot, store, failures, ids[i], now, left, made, pause, reason, text, score)
  end
end
if in_order then
  write_places(slot, in_order)
end
if dead_count < #ids then
  note_given_back(slot)
end
if unblock(slot, prepare, s[8], now) then
  wake(slot, channel, index)
elseif is_awaited(s[5], now) then
  --- @include "lib/hand_over"
  serve_sleepers(slot, store, prepare, KEYS[4], failures, channel, index, now)
end
