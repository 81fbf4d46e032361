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

-- Store the retries of a page of failed deliveries, from `first` to `last`, with their failure
-- entries. Adds to `stored`, the table that store_retries returns.
--- @inline
local function store_page(failed, fields, stored, first, last, now)
  local letters, died, later, leaving = stored.letters, stored.died, stored.later, stored.leaving
  local waits, places = failed.waits, stored.places
  local max_retries, jitter = tonumber(fields[MAX_RETRIES]), tonumber(fields[JITTER])
  local entries = redis.call('HMGET', failures, unpack(failed.ids, first, last))
  local noted, at_once, counts_at_once = {}, {}, {} -- the counts are deliveries left
  for i = first, last do
    local id, receipt, text = failed.ids[i], tonumber(failed.receipts[i]), failed.details[i]
    -- The receipt counts the retries before this failure, so as many deliveries are left after it.
    -- `max_retries` may have been larger when the message was received.
    local deliveries_left = math.min(max_retries, math.floor(receipt % 1000))
    local made = max_retries - deliveries_left + 1
    if text and #text > DETAILS_BYTES then
      text = string.sub(text, 1, DETAILS_BYTES)
    end
    if deliveries_left == 0 then
      local m = #died.ids + 1
      letters[i], leaving[#leaving + 1] = 'd', id
      died.ids[m], died.delivery_counts[m], died.details[m] = id, made, text
    else
      letters[i] = 'r'
      -- A given wait of 0 counts as well, because 0 is true in Lua.
      local wait = failed.wait or waits and waits[i] or retry_wait(fields[RETRY], jitter, made)
      local score = places and retry_score(places, id, receipt, wait > 0 and now + wait or 0)
      if score or wait > 0 then
        add_waiting_retry(id, now, wait, score)
        later[id], leaving[#leaving + 1] = true, id
      else
        at_once[#at_once + 1], counts_at_once[#at_once + 1] = id, deliveries_left
      end
      local entry = entries[i - first + 1]
      noted[#noted + 1] = id
      noted[#noted + 1] = failure_entry(entry, deliveries_left, made, failed.reason, text, now)
    end
  end
  if #at_once > 0 then
    add_retries(at_once, counts_at_once)
  end
  if #noted > 0 then
    redis.call('HSET', failures, unpack(noted))
  end
end

-- Store the deliveries that have retries left in the StoreQueue again, with their failure entries.
-- Return a table of
--   letters: a letter for each delivery: r goes back for a retry, d dead
--   died: `ids`, `delivery_counts` and `details` of the messages that die, for add_dead
--   later: the set of the messages that wait for their retry
--   leaving: a list of the messages that die or wait, which leave their groups
-- `places`: what read_places returned in a slot in order, else nil.
--- @inline
local function store_retries(failed, fields, places, now)
  local died = { ids = {}, delivery_counts = {}, details = {} }
  local stored = { letters = {}, died = died, later = {}, leaving = {}, places = places }
  for first = 1, #failed.ids, ENTRIES_AT_ONCE do
    local last = math.min(first + ENTRIES_AT_ONCE - 1, #failed.ids)
    store_page(failed, fields, stored, first, last, now)
  end
  return stored
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
  local stored = store_retries(failed, fields, places, now)
  local died = stored.died
  local dead_count = #died.ids
  local leave, hold
  if fields[GROUPS] then
    leave, hold = given_back_functions()
  end
  local let_next_out = leave
    and leave(stored.leaving, { died = set_of(died.ids), later = stored.later })
  if dead_count > 0 then
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
  return stored.letters, dead_count
end
