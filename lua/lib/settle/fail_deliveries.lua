-- Give failed deliveries back, for nack, rollback and query_fail.
--- @needs failures
--- @include "lib/dead_letters/dead_letters"
--- @include "lib/leases/remove_leases"
--- @include "lib/settle/attempts"
--- @include "lib/settle/signal_given_back"
--- @include "lib/settle/retry"
--- @include "lib/slot_fields"
--- @include "lib/take/in_order"
--- @include "lib/groups/given_back_functions"
local SEED_MOST = 2147483647 -- 2^31 - 1: the largest seed of random numbers

-- Return the set of some ids.
local function set_of(ids)
  local set = {}
  for i = 1, #ids do
    set[ids[i]] = true
  end
  return set
end

-- Add a message to a list of dead letters, for add_dead. `died`: nil, or the list.
--- @inline
local function with_another(died, id, made, text)
  if not died then
    died = { ids = {}, delivery_counts = {}, details = {} }
  end
  local n = #died.ids + 1
  died.ids[n], died.delivery_counts[n], died.details[n] = id, made, text
  return died
end

-- Write the retries of a page that may be received at once, and its failure entries.
--- @inline
local function add_page(at_once, lefts, noted)
  if #at_once > 0 then
    add_retries(at_once, lefts)
  end
  if #noted > 0 then
    redis.call('HSET', failures, unpack(noted))
  end
end

-- Store the deliveries that have retries left in the StoreQueue again, with their failure entries.
-- Returns
--   a letter for each delivery: r goes back for a retry, d dead
--   the messages that die, for add_dead, or nil
--   the set of the messages that wait for their retry
--   a list of the messages that die or wait, which leave their groups
-- `places`: what read_places returned in a slot in order, else nil.
--- @inline
local function store_retries(failed, fields, places, now)
  local ids, receipts, details, reason = failed.ids, failed.receipts, failed.details, failed.reason
  local given_wait, waits, ladder = failed.wait, failed.waits, fields[RETRY]
  local max_retries, jitter = tonumber(fields[MAX_RETRIES]), tonumber(fields[JITTER])
  local letters, died, later, leaving = {}, nil, {}, {}
  local entries, noted, at_once, lefts -- of a page
  for i = 1, #ids do
    local in_page = (i - 1) % ENTRIES_AT_ONCE + 1
    if in_page == 1 then
      local last = math.min(i + ENTRIES_AT_ONCE - 1, #ids)
      entries, noted = redis.call('HMGET', failures, unpack(ids, i, last)), {}
      at_once, lefts = {}, {}
    end
    local id, receipt, text = ids[i], tonumber(receipts[i]), details[i]
    -- `max_retries` may have been larger when the message was received.
    local left = math.min(max_retries, math.floor(receipt % 1000))
    local made = max_retries - left + 1
    if text and #text > DETAILS_BYTES then
      text = string.sub(text, 1, DETAILS_BYTES)
    end
    if left == 0 then
      letters[i], leaving[#leaving + 1] = 'd', id
      died = with_another(died, id, made, text)
    else
      letters[i] = 'r'
      local wait = given_wait or waits and waits[i] or retry_wait(ladder, jitter, made)
      local score = places and retry_score(places, id, receipt, wait > 0 and now + wait or 0)
      if score or wait > 0 then
        add_waiting_retry(id, now, wait, score)
        later[id], leaving[#leaving + 1] = true, id
      else
        at_once[#at_once + 1], lefts[#lefts + 1] = id, left
      end
      noted[#noted + 1] = id
      noted[#noted + 1] = failure_entry(entries[in_page], left, made, reason, text, now)
    end
    if in_page == ENTRIES_AT_ONCE or i == #ids then
      add_page(at_once, lefts, noted)
    end
  end
  return letters, died, later, leaving
end

-- Give failed deliveries back. A message with retries left goes to the StoreQueue again, a message
-- without retries goes to the DeadQueue. The first write frees memory.
--   failed: a table of `ids`, at least one; `receipts`, as text; `details`, the text of each error
--     or nil; `reason`, a letter (lib/settle/attempts); `wait`, ms until all retries, or `waits`,
--     ms until each retry. Without a wait the policy of the topic applies
--   fields: from read_return_fields
-- Returns a letter for each delivery, r retry or d dead, and how many are dead.
--- @inline
local function fail_deliveries(failed, fields, now, now_us)
  local places = fields[ORDERED] and read_places(fields[ORDERED])
  math.randomseed(now_us % SEED_MOST)
  remove_leases(failed.ids, failed.receipts)
  local letters, died, later, leaving = store_retries(failed, fields, places, now)
  local dead_count = died and #died.ids or 0
  local leave, hold
  if fields[GROUPS] then
    leave, hold = given_back_functions()
  end
  local let_next_out = leave and leave(leaving, died and set_of(died.ids), later)
  if died then
    died.reason, died.dead_to = failed.reason, fields[DEAD_TO]
    add_dead(died, fields[AUDITED], tonumber(fields[RETENTION]), now)
  end
  if places then
    write_places(places)
  end
  local any_out = let_next_out and let_next_out()
  local any_waits = dead_count < #failed.ids or any_out
  if hold and any_waits and tonumber(fields[GROUPS_PAUSED] or 0) > 0 then
    hold(failed.ids)
  end
  return letters, dead_count
end
