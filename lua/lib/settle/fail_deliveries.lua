-- Giving failed deliveries back, for nack and rollback.
--- @needs slot prepare failures
--- @include "lib/settle/attempts"
--- @include "lib/dead_letters/dead_letters"
--- @include "lib/settle/given_back"
--- @include "lib/take/in_order"
--- @include "lib/settle/retry"
local SEED_MOST = 2147483647 -- of random numbers: 2^31 - 1

-- The set of some ids.
local function set_of(ids)
  local set = {}
  for i = 1, #ids do
    set[ids[i]] = true
  end
  return set
end

-- Add deliveries to the StoreQueue again, with the failure of each, except those without retries. `places`: of read_places in a
-- slot in order, else nil. Returns a letter for each, r retry or d dead, and of the dead, or nil: their ids, their texts, and
-- how often each was delivered; then the set of those that wait for their retry.
--- @inline
local function store_retries(ids, receipts, details, reason, wait, max_retries, ladder, jitter, places, now)
  local letters, dead_ids, dead_texts, mades, later = {}, nil, nil, nil, {}
  local waits = type(wait) == 'table' and wait
  for first = 1, #ids, ENTRIES_AT_ONCE do
    local last = math.min(first + ENTRIES_AT_ONCE - 1, #ids)
    local entries, noted = redis.call('HMGET', failures, unpack(ids, first, last)), {}
    local at_once, lefts = {}, {}
    for i = first, last do
      local id, receipt, text = ids[i], tonumber(receipts[i]), details[i]
      local left = math.min(max_retries, math.floor(receipt % 1000)) -- `max_retries` may have been more when it was taken
      local made = max_retries - left + 1
      if text and #text > DETAILS_BYTES then
        text = string.sub(text, 1, DETAILS_BYTES)
      end
      if left == 0 then
        letters[i] = 'd'
        if not dead_ids then
          dead_ids, dead_texts, mades = {}, {}, {}
        end
        local n = #dead_ids + 1
        dead_ids[n], dead_texts[n], mades[n] = id, text, made
      else
        letters[i] = 'r'
        if waits then
          wait = waits[i]
        end
        local pause = wait or retry_wait(ladder, jitter, made)
        local score = places and retry_score(places, id, receipt, pause > 0 and now + pause or 0)
        if score or pause > 0 then
          add_waiting_retry(id, now, pause, score)
          later[id] = true
        else
          at_once[#at_once + 1], lefts[#lefts + 1] = id, left
        end
        noted[#noted + 1], noted[#noted + 2] = id, failure_entry(entries[i - first + 1], left, made, reason, text, now)
      end
    end
    if #at_once > 0 then
      add_retries(at_once, lefts)
    end
    if #noted > 0 then
      redis.call('HSET', failures, unpack(noted))
    end
  end
  return letters, dead_ids, dead_texts, mades, later
end

-- Give failed deliveries back: a message with retries remaining goes to the StoreQueue again, another to the DeadQueue. The first
-- write frees memory.
--   ids, receipts: the deliveries, one at least, and their receipts as text
--   details: for each the text of its error, or nil: it has none
--   reason: a letter (lib/settle/attempts)
--   wait: ms until the retry, or false for the policy of the topic; or a table with that of each
--   max_retries, ladder, jitter, retention, ordered, audited: fields of the slot
-- Returns a letter for each, r retry or d dead, and how many are dead.
--- @inline
local function fail_deliveries(ids, receipts, details, reason, wait, max_retries, ladder, jitter, retention, ordered,
    audited, now, now_us)
  local places = ordered and read_places(ordered)
  max_retries = tonumber(max_retries)
  math.randomseed(now_us % SEED_MOST)
  redis.call('ZREM', prepare, unpack(ids))
  local letters, dead_ids, dead_texts, mades, later = store_retries(ids, receipts, details, reason, wait, max_retries,
    ladder, tonumber(jitter), places, now)
  local dead_count, leaving = dead_ids and #dead_ids or 0, {}
  for i = 1, #ids do
    if letters[i] == 'd' or later[ids[i]] then
      leaving[#leaving + 1] = ids[i]
    end
  end
  local leave, hold
  if redis.call('HEXISTS', slot, 'groups') == 1 then
    --- @include "lib/groups/group_stops"
    --- @include "lib/groups/leave_groups"
    leave, hold = leaving_groups, hold_given_back
  end
  local bring_up = leave and leave(leaving, dead_ids and set_of(dead_ids), later)
  if dead_count > 0 then
    add_dead(audited, dead_ids, now, mades, reason, dead_texts, tonumber(retention))
  end
  if places then
    write_places(places)
  end
  local moved = bring_up and bring_up()
  if dead_count == #ids and not moved then
    return letters, dead_count
  end
  local any_paused = note_given_back()
  if any_paused then
    hold(ids)
  end
  return letters, dead_count
end
