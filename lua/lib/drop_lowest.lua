-- Making room in a full slot whose topic drops the lowest priority.
--- @include "lib/drop"
--- @include "lib/score_ranges"
--- @include "lib/member"

-- A function that drops the `excess` messages of the lowest priority; nil where they are more than 1000, or not all below
-- `least`, the lowest score of the new messages. Everything is read and checked here; the function only writes.
local function plan_drop_lowest(slot, store, records, bodies, failures, merge, audit, excess, least, now)
  if excess > 1000 then
    return nil
  end
  local lowest = redis.call('ZRANGEBYSCORE', store, PRIORITY_MIN, '(' .. PRIORITY_END, 'WITHSCORES', 'LIMIT', 0, excess)
  if #lowest < 2 * excess or tonumber(lowest[2 * excess]) >= least then
    return nil
  end
  --- @include "lib/envelope"
  local dropped, unmerged = {}, {}
  for i = 1, 2 * excess, 2 do
    dropped[#dropped + 1] = lowest[i]
  end
  redis.call('HLEN', failures)
  redis.call('HLEN', bodies)
  local audited = redis.call('ZCARD', audit) > 0
  if redis.call('HLEN', merge) > 0 then
    for i = 1, #dropped do
      local _, _, key = envelope(redis.call('HGET', records, dropped[i]) or '')
      local entry = key and redis.call('HGET', merge, key)
      if entry and string.sub(entry, 1, MEMBER) == dropped[i] then
        unmerged[#unmerged + 1] = key
      end
    end
  end
  return function()
    redis.call('ZREM', store, unpack(dropped))
    if #unmerged > 0 then
      redis.call('HDEL', merge, unpack(unmerged))
    end
    drop_for_good(slot, records, bodies, failures, audited and audit, 100, dropped, now)
    redis.call('HINCRBY', slot, 'dropped', #dropped)
  end
end
