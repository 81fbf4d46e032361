-- Retries of failed deliveries.
--- @include "lib/attempts"
--- @include "lib/score"
--- @include "lib/timed_score"

-- How long retry number `attempt` waits, in ms. A topic's policy is a ladder: for each retry the longest wait, separated
-- by commas; `jitter` is the share of it that is left to chance (0 none, 100 all of it). rmq/core/retry.py builds ladders, so
-- other policies need no code here.
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

-- Add a delivery that failed to the StoreQueue again: at once as a retry, or timed. Its record is asked for its priority
-- only when the time has come. `score`: its old place in a slot in order, else nil.
local function add_retry(slot, store, failures, id, now, left, made, wait, reason, details, score)
  if score then
    redis.call('ZADD', store, score, id)
  elseif wait > 0 then
    redis.call('ZADD', store, next_timed_score(store, now + wait, 1), id)
  else
    redis.call('ZADD', store, ordered_score(left, redis.call('HINCRBY', slot, 'returned', 1)), id)
  end
  note_failure(failures, id, left, made, reason, details, now)
end
