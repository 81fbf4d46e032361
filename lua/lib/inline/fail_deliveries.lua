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
           dead_ids, dead_texts, mades, max_retries, in_order
Returns for the caller: no
]]
--- @include "lib/attempts"
--- @include "lib/dead_letters"
--- @include "lib/given_back"
--- @include "lib/retry"
--- @include "lib/in_order"
--- @include "lib/wake"
local letters, max_retries, dead_count = {}, tonumber(s[2]), 0
local dead_ids, dead_texts, mades -- of those that went to the DeadQueue
local in_order = s[7] and read_places(slot, s[7])
math.randomseed(now_us % 2147483647)
redis.call('ZREM', prepare, unpack(ids))
for first = 1, #ids, ENTRIES_AT_ONCE do
  local last = math.min(first + ENTRIES_AT_ONCE - 1, #ids)
  local entries, noted = redis.call('HMGET', failures, unpack(ids, first, last)), {}
  local at_once, lefts = {}, {}
  for i = first, last do
    local receipt, text = tonumber(receipts[i]), details[i]
    local left = math.floor(receipt % 1000)
    local made = max_retries - left + 1
    if text and #text > 65536 then
      text = string.sub(text, 1, 65536)
    end
    if left == 0 then
      letters[i] = 'd'
      if dead_count == 0 then
        dead_ids, dead_texts, mades = {}, {}, {}
      end
      dead_count = dead_count + 1
      dead_ids[dead_count], dead_texts[dead_count], mades[dead_count] = ids[i], text, made
    else
      letters[i] = 'r'
      local pause = wait or retry_wait(s[3], tonumber(s[4]), made)
      local score = in_order and retry_score(in_order, KEYS[4], ids[i], receipt, pause > 0 and now + pause or 0)
      if score or pause > 0 then
        add_waiting_retry(store, ids[i], now, pause, score)
      else
        at_once[#at_once + 1], lefts[#lefts + 1] = ids[i], left
      end
      noted[#noted + 1], noted[#noted + 2] = ids[i], failure_entry(entries[i - first + 1], left, made, reason, text, now)
    end
  end
  if #at_once > 0 then
    add_retries(slot, store, at_once, lefts)
  end
  if #noted > 0 then
    redis.call('HSET', failures, unpack(noted))
  end
end
if dead_count > 0 then
  add_dead(slot, KEYS[5], KEYS[4], KEYS[8], failures, audit, dead_ids, now, mades, reason, dead_texts, tonumber(s[6]))
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
