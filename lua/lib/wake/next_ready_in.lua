-- When a consumer next has work.
--- @needs store prepare
--- @include "lib/scores/score_ranges"
--- @include "lib/leases/shared_leases"

-- Return the us until a slot next has work for a consumer (0 now, -1 never as things are), and the
-- field where a sleeping consumer is noted. Work is a message that may be taken, or a lease that
-- has expired.
-- - leases_until: when the first lease of a query, or shared lease, ends, epoch ms, or false. The
--   deadlines of its deliveries never come
-- - ordered_until: until when a slot in order waits, epoch ms; nil for another slot. A slot in
--   order has no work before that time. While a delivery is in flight, its only work is the end of
--   a lease
-- - gate: nil, or when the slot gives messages again: `at`, epoch ms, or math.huge if other
--   consumers decide; `field`, where a consumer that waits for it is noted; and `sends_wake`, if it
--   is also to be noted in `waiting`
--
-- The field is usually `waiting`. It is `blocked` if the consumer waits for others to settle, so
-- that sends do not wake it in vain. It is nil if no message can wake the consumer.
local function next_ready_in(now_us, leases_until, ordered_until, gate)
  local lowest = redis.call('ZRANGE', store, 0, 0, 'WITHSCORES')[2] -- a score
  local ready = nil -- epoch ms; nil if no message waits
  if lowest and tonumber(lowest) < 0 then -- the message is held behind others of its group
    lowest = redis.call('ZRANGEBYSCORE', store, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  if lowest and tonumber(lowest) < PRIORITY_END then
    if not ordered_until and not gate then
      return 0, 'waiting'
    end
    ready = 0
  else
    ready = lowest and math.floor(tonumber(lowest))
  end
  local field = 'waiting'
  if gate and (gate.at == math.huge or ready and ready < gate.at) then
    ready, field = gate.at < math.huge and gate.at or nil, gate.field
  end
  local lease = redis.call('ZRANGE', prepare, 0, 0, 'WITHSCORES')
  if lease[2] then
    local deadline = math.floor(tonumber(lease[2]) / 1000) * 1000
    deadline = deadline < SHARED_DEADLINE * 1000 and deadline or math.huge
    if ordered_until then
      field = ready and 'blocked' or field
      ready = deadline
    elseif not ready or deadline < ready then
      ready = deadline
    end
  elseif ready and ordered_until and ordered_until > ready then
    ready, field = ordered_until, 'blocked'
  end
  ready = math.min(ready or math.huge, tonumber(leases_until or math.huge))
  if ready == math.huge then
    return -1, field
  end
  return math.max(0, ready * 1000 - now_us), field
end
