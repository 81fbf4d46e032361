-- order_anew: the arrival counter of a slot, begun anew where it has gone far and no priority message waits, so that
-- nobody is left to be ordered against. Timed messages and retries do not count: one that is due in a month
-- would keep it from ever beginning anew.
local FAR = 1073741824 -- a quarter of what the largest priorities can order

local function order_anew(store, order)
  if order > FAR and redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END) == 0 then
    return 0
  end
  return order
end

-- front_anew: the same of the counter that falls with what is handed back, to which timed messages and retries
-- are handed back as well.
local function front_anew(store, front)
  if front < -FAR and redis.call('ZCOUNT', store, '-inf', '(' .. TIMED_MIN) == 0 then
    return 0
  end
  return front
end
