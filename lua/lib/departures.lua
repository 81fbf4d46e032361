--[[
Messages that were moved to another topic, so that the outbox, which asks where its messages are, does not take them for lost.

They are in `arrivals` under their members, beside the entries of redrive_send, which are longer. Their scores, the time in
epoch ms minus 9e15, are below all of those. Only ids that their sender keeps are noted. A message that comes back is
removed from here by redrive_send.
]]
local DEPARTED, DEPARTED_KEEP_MS, DEPARTED_KEEP_S = -9e15, 2592000000, 2592000

-- Note ids (a list) as gone to another topic; forget some that went 30 days ago.
local function note_departures(arrivals, now, ids)
  local entries = {}
  for i = 1, #ids do
    entries[2 * i - 1], entries[2 * i] = string.format('%.0f', DEPARTED + now), ids[i]
  end
  redis.call('ZADD', arrivals, unpack(entries))
  local old = redis.call('ZRANGEBYSCORE', arrivals, '-inf', string.format('%.0f', DEPARTED + now - DEPARTED_KEEP_MS),
    'LIMIT', 0, 2 * #ids)
  if #old > 0 then
    redis.call('ZREM', arrivals, unpack(old))
  end
  redis.call('EXPIRE', arrivals, DEPARTED_KEEP_S)
end
