-- A query is a reader that takes messages in order to hand them out again and again, until it is told that
-- their batch is done: a streaming query of Spark. What it holds stands in the PrepareQueue with a deadline
-- that never comes, and in a log of its own under growing numbers; one lease in `queries` stands for all.
-- The log is a list: its last id has the number `tail`, and those before it one less each. What leaves it
-- leaves it at its beginning. Ids whose lease has lapsed may stay there for a time, up to the number `lapsed_to`:
-- the query does not hold them any more, yet may have handed them out in a batch that is done by now. They stay
-- for an owner that is `exact`: one that ends a batch only when all of it was handed out.
local FAR = 4000000000 -- the deadline of what a query holds, in s: the year 2096

-- foreign: whether somebody else runs the query: its name, and ms until that ends.
local function foreign(query, owner, now)
  local q = redis.call('HMGET', query, 'owner', 'owner_until')
  local left = tonumber(q[2] or 0) - now
  if q[1] and q[1] ~= owner and left > 0 then
    return q[1], left
  end
end

local KEPT = 34560000000 -- a query that holds nothing, and is silent for so long, may begin with 1 again: 400 days
local LAPSED_KEPT = 2592000000 -- ids that have lapsed are forgotten after so long: 30 days

-- extent: the log has the numbers after the first result, up to the second; the query holds those after the
-- third. `from`: a number that was used, as far as a caller knows; Redis may have lost its own.
local function extent(query, log, from)
  local q = redis.call('HMGET', query, 'tail', 'lapsed_to')
  local tail = math.max(from, tonumber(q[1] or 0))
  local first = tail - redis.call('LLEN', log)
  return first, tail, math.max(first, math.min(tail, tonumber(q[2] or 0)))
end

-- keep: for how long the numbers are known: as long as the query holds any, and some time after.
local function keep(query, log)
  local _, tail, lapsed = extent(query, log, 0)
  if tail > lapsed then
    redis.call('PERSIST', query)
    redis.call('PERSIST', log)
  else
    redis.call('PEXPIRE', query, KEPT)
    redis.call('PEXPIRE', log, LAPSED_KEPT)
  end
end

-- forget: drop what stands in the log up to a number, and nobody asks for any more.
local function forget(query, log, first, upto)
  if upto > first then
    redis.call('LTRIM', log, upto - first, -1)
    redis.call('HSET', query, 'waived', upto)
  end
end

-- hold_on: the query is run by this owner, and holds what it has, for so long from now.
local function hold_on(slot, query, log, queries, run, owner, now, lease, owner_ms, exact)
  redis.call('HSET', query, 'owner', owner, 'owner_until', now + owner_ms, 'exact', exact)
  if exact ~= '1' then
    local first, _, lapsed = extent(query, log, 0)
    forget(query, log, first, lapsed)
  end
  keep(query, log)
  redis.call('ZADD', queries, now + lease, run)
  local first = redis.call('ZRANGE', queries, 0, 0, 'WITHSCORES')
  redis.call('HSET', slot, 'queries_until', string.format('%.0f', tonumber(first[2])))
end

-- names: the run and the owner, as a caller gave them.
local function names(run, owner)
  if not string.find(run, '^%x+$') or #run ~= 32 then
    fail('ARG', 'run')
  end
  if owner and (#owner < 1 or #owner > 200) then
    fail('ARG', 'owner')
  end
end
