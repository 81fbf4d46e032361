-- retry: where a failed delivery goes. A topic's policy is a ladder: for each retry, the longest wait in
-- ms, separated by commas; `jitter` tells which share of it is left to chance (0 none, 100 all of it).
-- rmq/core/retry.py builds ladders, so no other policy needs words here.
local function ladder_wait(ladder, jitter, attempt)
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

-- give_back: a delivery that failed with `left` retries remaining goes back to the StoreQueue: at once
-- as a retry, or timed. The record is asked for its priority only when the time has come.
-- In a slot in order (`score` is its old place there) it goes back to that.
local function give_back(slot, store, failures, id, now, left, made, wait, reason, told, score)
  if score then
    redis.call('ZADD', store, score, id)
  elseif wait > 0 then
    redis.call('ZADD', store, in_line(store, now + wait, 1), id)
  else
    redis.call('ZADD', store, ordered_score(left, redis.call('HINCRBY', slot, 'returned', 1)), id)
  end
  redis.call('HSET', failures, id, failure(left, made, reason, told))
end
