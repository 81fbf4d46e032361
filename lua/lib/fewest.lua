-- fewest: part of take. Once in a while the retries with the fewest deliveries left go first, the oldest of each
-- number before the others: they stand behind all that failed for the first time, and a steady stream of such
-- failures would keep them waiting for ever.
batch = {}
for left = 1, 16 do
  local room = limit - n - #batch / 2
  if room < 1 then
    break
  end
  local level = redis.call('ZREVRANGEBYSCORE', store, string.format('(%d', left + 1), left, 'WITHSCORES', 'LIMIT', 0, room)
  for i = 1, #level do
    batch[#batch + 1] = level[i]
  end
end
