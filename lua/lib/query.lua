--[[
Queries: readers that take messages in order and hand them out again and again, until their batch is done. Spark's
streaming queries are.

The messages that a query holds are in the PrepareQueue with a deadline that never comes, and in the query's log under
growing numbers; its lease in `queries` stands for all of them. The log is a list: its last id has the number `tail`, and
the ids before it one less each. Ids leave the log at its beginning.

When the lease expires, ids may stay in the log for a time, up to the number `lapsed_to`: the query no longer holds them,
but may have handed them out in a batch that is done by now. They stay for an owner that is `exact`: one that ends a
batch only when all of it was handed out.
]]
--- @include "lib/check"
--- @include "lib/receipt"
--- @include "lib/shared_leases"
local QUERY_KEPT_MS = 34560000000 -- 400 days: a query that holds nothing and is silent for so long may begin with 1 again
local EXPIRED_KEPT_MS = 2592000000 -- 30 days: ids whose lease expired stay in the log for so long

-- The (owner, ms it has left) where another owner runs the query; nothing otherwise.
local function other_owner(query, owner, now)
  local current, owner_until = unpack(redis.call('HMGET', query, 'owner', 'owner_until'))
  local left = tonumber(owner_until or 0) - now
  if current and current ~= owner and left > 0 then
    return current, left
  end
end

-- The range of the log: it has the numbers after the first result, up to the second; the query holds those after the
-- third. `from`: a number that was used, as far as the caller knows; Redis may have lost its own.
local function log_range(query, log, from)
  local newest, lapsed_to = unpack(redis.call('HMGET', query, 'tail', 'lapsed_to'))
  local tail = math.max(from, tonumber(newest or 0))
  local first = tail - redis.call('LLEN', log)
  return first, tail, math.max(first, math.min(tail, tonumber(lapsed_to or 0)))
end

-- Keep the query and its log as long as the query holds messages, and some time after.
local function set_expiry(query, log)
  local _, tail, expired_to = log_range(query, log, 0)
  if tail > expired_to then
    redis.call('PERSIST', query)
    redis.call('PERSIST', log)
  else
    redis.call('PEXPIRE', query, QUERY_KEPT_MS)
    redis.call('PEXPIRE', log, EXPIRED_KEPT_MS)
  end
end

-- Drop ids from the log up to a number that nobody asks for any more.
local function trim_log(query, log, first, upto)
  if upto > first then
    redis.call('LTRIM', log, upto - first, -1)
    redis.call('HSET', query, 'waived', upto)
  end
end

-- Renew the query's lease and its owner's, counted from now.
local function renew_lease(slot, query, log, queries, leases, run, owner, now, lease, owner_ms, exact)
  redis.call('HSET', query, 'owner', owner, 'owner_until', now + owner_ms, 'exact', exact)
  if exact ~= '1' then
    local first, _, expired_to = log_range(query, log, 0)
    trim_log(query, log, first, expired_to)
  end
  set_expiry(query, log)
  redis.call('ZADD', queries, now + lease, run)
  note_first_end(slot, queries, leases)
end

-- Check the run and the owner that a caller gave.
local function check_names(run, owner)
  if not string.find(run, '^%x+$') or #run ~= 32 then
    fail('ARG', 'run')
  end
  if owner and (#owner < 1 or #owner > 200) then
    fail('ARG', 'owner')
  end
end
