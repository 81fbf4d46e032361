-- soon: microseconds until this slot next has work for a consumer: 0 for now, -1 for never as things
-- stand. Work is a message that may be taken, or a lease that has run out. A slot in order (`hold` is not
-- nil) has none before its hold, and while something is in flight none but a lease that runs out.
-- Also the field by which a sleeper is noted: `blocked` when it waits for others to settle what they have,
-- so that no send wakes it in vain, else `waiting`.
local function soon(store, prepare, now_us, hold)
  local due
  if redis.call('ZCOUNT', store, '-inf', '(' .. PRIORITY_END) > 0 then
    if not hold then
      return 0, 'waiting'
    end
    due = 0
  else
    local head = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    due = head[2] and math.floor(tonumber(head[2]))
  end
  local note = 'waiting'
  local lease = redis.call('ZRANGE', prepare, 0, 0, 'WITHSCORES')
  if lease[2] then
    local deadline = math.floor(tonumber(lease[2]) / 1000) * 1000
    if hold then
      note = due and 'blocked' or note
      due = deadline
    elseif not due or deadline < due then
      due = deadline
    end
  elseif due and hold and hold > due then
    due, note = hold, 'blocked'
  end
  if not due then
    return -1, note
  end
  return math.max(0, due * 1000 - now_us), note
end
