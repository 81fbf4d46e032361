-- soon: microseconds until this slot next has work for a consumer: 0 for now, -1 for never as things
-- stand. Work is a message that may be taken, or a lease that has run out.
local function soon(store, prepare, now_us)
  if redis.call('ZCOUNT', store, '-inf', '(' .. PRIORITY_END) > 0 then
    return 0
  end
  local due
  local head = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if head[2] then
    due = math.floor(tonumber(head[2]))
  end
  local lease = redis.call('ZRANGE', prepare, 0, 0, 'WITHSCORES')
  if lease[2] then
    local deadline = math.floor(tonumber(lease[2]) / 1000) * 1000
    if not due or deadline < due then
      due = deadline
    end
  end
  if not due then
    return -1
  end
  return math.max(0, due * 1000 - now_us)
end
