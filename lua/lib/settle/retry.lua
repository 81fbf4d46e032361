-- Retries of failed deliveries.
--- @needs slot store
--- @include "lib/scores/score"
--- @include "lib/scores/timed_score"

-- Return how long retry number `attempt` waits, in ms. The topic's policy is a ladder: the longest
-- wait of each retry, separated by commas. `jitter`: the part of the wait that is random, 0 to 100
-- %. rmq/kernel/core/retry.py builds the ladder, so other policies need no code here.
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

-- Add a failed delivery to the StoreQueue: at `score`, its former place in a slot in order, or by
-- its due time. When it is due, its priority is read from its record. The caller writes the failure
-- entry.
local function add_waiting_retry(id, now, wait, score)
  redis.call('ZADD', store, score or next_timed_score(now + wait, READ_RECORD), id)
end

-- Add failed deliveries to the StoreQueue, to be received at once.
local function add_retries(ids, deliveries_left)
  local order, members = redis.call('HINCRBY', slot, 'returned', #ids) - #ids, {}
  for i = 1, #ids do
    members[2 * i - 1], members[2 * i] = ordered_score(deliveries_left[i], order + i), ids[i]
  end
  redis.call('ZADD', store, unpack(members))
end
