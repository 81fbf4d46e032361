-- Retries of failed deliveries.
--- @needs slot store
--- @include "lib/scores/score"
--- @include "lib/scores/timed_score"

-- How long retry number `attempt` waits, in ms. A topic's policy is a ladder: for each retry the
-- longest wait, separated by commas; `jitter` is the share of it that is left to chance (0 none,
-- 100 all of it). rmq/kernel/core/retry.py builds it, so other policies need no code here.
local function retry_wait(ladder, jitter, attempt)
  local n = 0
  local last = 0
  for wait in string.gmatch(ladder, '%d+') do
    n = n + 1
    last = tonumber(wait)
    if n == attempt then
      break
    end
  end
  if last == 0 or jitter == 0 then
    return last
  end
  local share = last * jitter / 100
  return math.floor(last - share + share * math.random() + 0.5)
end

-- Add a delivery that failed to the StoreQueue again: timed, or at `score`, its old place in a slot
-- in order, else nil. Its record is asked for its priority only when the time has come. The caller
-- notes the failure.
local function add_waiting_retry(id, now, wait, score)
  redis.call('ZADD', store, score or next_timed_score(now + wait, 1), id)
end

-- Add deliveries that failed to the StoreQueue again, to be taken at once. `left`: the deliveries
-- left of each.
local function add_retries(ids, left)
  local order, members = redis.call('HINCRBY', slot, 'returned', #ids) - #ids, {}
  for i = 1, #ids do
    members[2 * i - 1], members[2 * i] = ordered_score(left[i], order + i), ids[i]
  end
  redis.call('ZADD', store, unpack(members))
end
