-- Remove deliveries that are given back from the PrepareQueue.
--- @needs prepare

-- Remove these deliveries, at least one. `receipts`: their valid receipts. If the PrepareQueue has
-- no others between the lowest and the highest receipt, the range is removed: the append-only file
-- then has no member for each delivery.
--- @inline
local function remove_leases(ids, receipts)
  local low, high = math.huge, 0
  for m = 1, #ids do
    local receipt = tonumber(receipts[m])
    low, high = math.min(low, receipt), math.max(high, receipt)
  end
  local first, last = string.format('%.17g', low), string.format('%.17g', high)
  if #ids > 1 and redis.call('ZCOUNT', prepare, first, last) == #ids then
    redis.call('ZREMRANGEBYSCORE', prepare, first, last)
  else
    redis.call('ZREM', prepare, unpack(ids))
  end
end
