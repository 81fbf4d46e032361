-- hold_of: where a slot is consumed in order (the field `ordered` is there): before which time, epoch ms, it
-- gives nothing. A hold counts while the message that failed, or was put off, waits here: once that one is
-- cancelled or purged, nobody has to wait for it. nil where the slot is not in order.
local function hold_of(slot, store, ordered, now)
  local hold = ordered and tonumber(ordered)
  if hold and hold > now and not redis.call('ZSCORE', store, redis.call('HGET', slot, 'holder') or '') then
    return 1
  end
  return hold or nil
end
