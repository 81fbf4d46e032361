-- Requests to cancel a message in flight. A request is for one delivery. The field `~<member>` of
-- the slot has the receipt modulo 1000: retries remaining and delivery number, which no renewal
-- changes. The field `cancelling` has the number of these fields; it is missing if there are none.
--- @needs slot

-- Return by position whether the cancellation of a delivery was requested. `receipts`: receipts of
-- the deliveries, in the same order.
local function find_requests(ids, receipts)
  local names = {}
  for i = 1, #ids do
    names[i] = '~' .. ids[i]
  end
  local requests = redis.call('HMGET', slot, unpack(names))
  for i = 1, #ids do
    requests[i] = requests[i] and tonumber(requests[i]) == tonumber(receipts[i]) % 1000
  end
  return requests
end

-- Remove the requests for messages that are no longer in flight. `cancelling`: the field of the
-- slot.
local function forget_requests(ids, cancelling)
  local names = {}
  for i = 1, #ids do
    names[i] = '~' .. ids[i]
  end
  local removed = redis.call('HDEL', slot, unpack(names))
  if removed >= tonumber(cancelling) then
    redis.call('HDEL', slot, 'cancelling')
  elseif removed > 0 then
    redis.call('HINCRBY', slot, 'cancelling', -removed)
  end
end
