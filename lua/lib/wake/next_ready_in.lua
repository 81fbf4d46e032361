-- When a consumer next has work.
--- @needs store prepare
--- @include "lib/scores/score_ranges"
--- @include "lib/leases/shared_leases"

-- Return the us until a slot next has work for a consumer (0 now, -1 never as things are), and the
-- field where a sleeping consumer is noted. Work is a message that may be taken, or a lease that
-- has expired.
--
--   leases_until  when the first query's or shared lease ends, epoch ms, or false; the deadlines of
--                 its deliveries never come
--   hold          of a slot in order, else nil: it has no work before its hold and, while a
--                 delivery is in flight, none but a lease that expires
--   gate          nil, or when the slot gives messages again: `at`, epoch ms, or math.huge if that
--                 depends on others; `field`, where a consumer that waits for that is noted
--
-- The field is `waiting`; `blocked` if the consumer waits for others to settle their deliveries, so
-- that sends do not wake it in vain; nil if no message can wake it.
local function next_ready_in(now_us, leases_until, hold, gate)
  local first, ready = redis.call('ZRANGE', store, 0, 0, 'WITHSCORES')[2], nil
  if first and tonumber(first) < 0 then -- it is held behind others of its group
    first = redis.call('ZRANGEBYSCORE', store, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  if first and tonumber(first) < PRIORITY_END then
    if not hold and not gate then
      return 0, 'waiting'
    end
    ready = 0
  else
    ready = first and math.floor(tonumber(first))
  end
  local field = 'waiting'
  if gate and (gate.at == math.huge or ready and ready < gate.at) then
    ready, field = gate.at < math.huge and gate.at or nil, gate.field
  end
  local lease = redis.call('ZRANGE', prepare, 0, 0, 'WITHSCORES')
  if lease[2] then
    local deadline = math.floor(tonumber(lease[2]) / 1000) * 1000
    deadline = deadline < SHARED * 1000 and deadline or math.huge
    if hold then
      field = ready and 'blocked' or field
      ready = deadline
    elseif not ready or deadline < ready then
      ready = deadline
    end
  elseif ready and hold and hold > ready then
    ready, field = hold, 'blocked'
  end
  ready = math.min(ready or math.huge, tonumber(leases_until or math.huge))
  if ready == math.huge then
    return -1, field
  end
  return math.max(0, ready * 1000 - now_us), field
end
