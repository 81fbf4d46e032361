--[[
Receipts of deliveries, which are the scores of the PrepareQueue: deadline s * 1000 + retries
remaining + (delivery number mod 2048) / 2048. Their Python twin is rmq/kernel/core/score.py.

The deadline says how long the receipt is valid:

- below 3e9: the delivery has a lease of its own, which ends then
- 3e9 + n: the delivery is under the shared lease n (lib/leases/shared_leases)
- 4e9 + page: the delivery belongs to a query (lib/query)
]]
--- @needs prepare
local DELIVERY_CYCLE = 2048 -- number of successive deliveries that differ in the fraction
-- 1e4 / 2048. A double of this size has at most 13 bits for the fraction, so four decimals name
-- exactly one receipt, and the append-only file has seven bytes less for each message.
local DELIVERY_UNIT = 4.8828125
local SHARED_DEADLINE = 3000000000 -- the year 2065
local SHARED_MOST = 900000000 -- largest number of a shared lease
local RUNS_FROM = 6 -- where the runs of receipts begin in ARGV (lib/leases/receipt_runs)
local QUERY_DEADLINE = 4000000000 -- the year 2096
-- Deadline of a delivery whose query or shared lease was rolled back. It has passed.
local ROLLED_BACK_END = 1
-- The first byte of the field `max_retries` of a slot if the setting was changed. Replies then say
-- how many retries remain to each message.
local RETRIES_CHANGED = 43 -- +

-- Return the receipt of a delivery as text.
--- @inline
local function receipt_text(deadline, retries_left, delivery)
  return string.format('%d.%04d',
    deadline * 1000 + retries_left, delivery % DELIVERY_CYCLE * DELIVERY_UNIT + 0.5)
end

-- Return the bound behind the receipts of expired leases, for ZCOUNT and ZRANGEBYSCORE. A lease
-- ends when its second begins, so the bound is the first receipt of the next second.
--- @inline
local function end_of_expired(now)
  return string.format('(%d', now - now % 1000 + 1000)
end

-- Return how many deliveries with a lease of their own have expired.
--- @inline
local function count_expired(now)
  local past = end_of_expired(now)
  return redis.call('ZCOUNT', prepare, '-inf', past)
end

-- Return receipts and ids in turn, as ZADD takes them. `first`: number of the first delivery.
-- `retries_left`: nil, or by position the retries that remain to messages that have failed before.
--- @inline
local function receipts_of(ids, n, deadline, first, max_retries, retries_left)
  -- unfailed: format of the receipt of a message that has not failed
  local receipts, unfailed = {}, string.format('%d.%%04d', deadline * 1000 + max_retries)
  for i = 1, n do
    local own_retries = retries_left and retries_left[i]
    local fraction = (first + i - 1) % DELIVERY_CYCLE * DELIVERY_UNIT + 0.5
    if own_retries and own_retries < max_retries then
      receipts[2 * i - 1] = string.format('%d.%04d', deadline * 1000 + own_retries, fraction)
    else
      receipts[2 * i - 1] = string.format(unfailed, fraction)
    end
    receipts[2 * i] = ids[i]
  end
  return receipts
end
