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
           retried, retried_ids, dead_ids, dead_texts, mades, max_retries, in_order
Returns for the caller: no
]]
--- @include "lib/attempts"
--- @include "lib/dead_letters"
--- @include "lib/given_back"
--- @include "lib/retry"
--- @include "lib/in_order"
--- @include "lib/wake"
local letters, max_retries, dead_count = {}, tonumber(s[2]), 0
local retried, retried_ids = nil, ids -- their positions; nil while all are retried
local dead_ids, dead_texts, mades
local in_order = s[7] and read_places(slot, s[7])
math.randomseed(now_us % 2147483647)
redis.call('ZREM', prepare, unpack(ids))
for i = 1, #ids do
  if details[i] and #details[i] > 65536 then
    details[i] = string.sub(details[i], 1, 65536)
  end
  if math.floor(tonumber(receipts[i]) % 1000) > 0 then
    letters[i] = 'r'
    if retried then
      retried[#retried + 1], retried_ids[#retried + 1] = i, ids[i]
    end
  else
    letters[i] = 'd'
    if not retried then
      retried, retried_ids, dead_ids, dead_texts, mades = {}, {}, {}, {}, {}
      for before = 1, i - 1 do
        retried[before], retried_ids[before] = before, ids[before]
      end
    end
    dead_count = dead_count + 1
    dead_ids[dead_count], dead_texts[dead_count], mades[dead_count] = ids[i], details[i], max_retries + 1
  end
end
for first = 1, #retried_ids, ENTRIES_AT_ONCE do
  local last = math.min(first + ENTRIES_AT_ONCE - 1, #retried_ids)
  local entries, noted = redis.call('HMGET', failures, unpack(retried_ids, first, last)), {}
  local at_once, lefts = {}, {}
  for r = first, last do
    local i = retried and retried[r] or r
    local id, receipt, text = retried_ids[r], tonumber(receipts[i]), details[i]
    local left = math.floor(receipt % 1000)
    local made = max_retries - left + 1
    local pause = wait or retry_wait(s[3], tonumber(s[4]), made)
    local score = in_order and retry_score(in_order, KEYS[4], id, receipt, pause > 0 and now + pause or 0)
    if score or pause > 0 then
      add_waiting_retry(store, id, now, pause, score)
    else
      at_once[#at_once + 1], lefts[#lefts + 1] = id, left
    end
    noted[#noted + 1], noted[#noted + 2] = id, failure_entry(entries[r - first + 1], left, made, reason, text, now)
  end
  if #at_once > 0 then
    add_retries(slot, store, at_once, lefts)
  end
  redis.call('HSET', failures, unpack(noted))
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
