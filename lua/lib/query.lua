--[[
Queries: readers that take messages in order and hand them out again and again, until their batch is
done. Spark's streaming queries are.

The messages that a query holds are in the PrepareQueue with a deadline that never comes, and in the
query's log under growing numbers; its lease in `queries` stands for all of them. The log is a list:
its last id has the number `tail`, and the ids before it one less each. Ids leave the log at its
beginning.

What one take takes is a page: its messages have one deadline of their own, FAR and the number of
the page, which grows along the log. So pages at the beginning of the log are one range of the
PrepareQueue.

When the lease expires, ids may stay in the log for a time, up to the number `lapsed_to`: the query
no longer holds them, but may have handed them out in a batch that is done by now. They stay for an
owner that is `exact`: one that ends a batch only when all of it was handed out.

Messages that query_fail takes out of a batch keep their places in the log until the batch is
settled, and are marked by their numbers: the query no longer holds them, and they are not missing.
The same message may come again under another number.

A query has one owner, the process that runs it. Only query_renew makes another one the owner. It
renews the ownership in one slot of the topic, the first, and asks there before it takes over in the
others.

Fields of a query's hash: `tail` newest number in the log; `read` newest number that was handed out;
`settled` number up to which it was settled; `owner` and `owner_until`; `page` number of its last
page; `missed` how many of the batch that ends at `missed_at` were not settled; `bytes` of records
and bodies that were read since query_settle asked; `report` of query_renew.
]]
--- @needs query querylog querymarks
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
-- 400 days: after that, a silent query that holds nothing may begin with 1 again.
local QUERY_KEPT_MS = 34560000000
local EXPIRED_KEPT_MS = 2592000000 -- 30 days: ids whose lease expired stay in the log for so long
-- Fields of a query, and the place of each in the list that read_query returns: false where it has
-- no such field.
local OWNER, OWNER_UNTIL, TAIL, LAPSED_TO, EXACT, SETTLED = 1, 2, 3, 4, 5, 6
local READ, WAIVED, MISSED, MISSED_AT, PAGE, BYTES = 7, 8, 9, 10, 11, 12

-- The fields of a query, by their places.
local function read_query()
  return redis.call('HMGET', query, 'owner', 'owner_until', 'tail', 'lapsed_to', 'exact', 'settled',
    'read', 'waived', 'missed', 'missed_at', 'page', 'bytes')
end

-- The ms that the owner has left, negative after that; and the owner, '' where there is none. In
-- slots other than the first it is not known how long the owner has left: as good as nothing.
local function owner_of(state, now)
  local left = state[OWNER_UNTIL] and tonumber(state[OWNER_UNTIL]) - now or -QUERY_KEPT_MS
  return state[OWNER] and left or 0, state[OWNER] or ''
end

-- The (ms it has left, owner) where another owner runs the query; nothing otherwise.
local function other_owner(state, owner, now)
  if state[OWNER] and state[OWNER] ~= owner then
    return owner_of(state, now)
  end
end

-- The range of the log: it has the numbers after the first result, up to the second; the query
-- holds those after the third. `from`: a number that was used, as far as the caller knows; Redis
-- may have lost its own.
local function log_range(state, from)
  local tail = math.max(from, tonumber(state[TAIL] or 0))
  local first = tail - redis.call('LLEN', querylog)
  return first, tail, math.max(first, math.min(tail, tonumber(state[LAPSED_TO] or 0)))
end

-- By number, the marks of messages that query_fail took out of the batch: the number, r (given back
-- for a retry) or d (dead), and the receipt that it had.
local function read_marks(low, high)
  local found = {}
  local reply = redis.call('ZRANGEBYSCORE', querymarks, low, high, 'WITHSCORES')
  for i = 1, #reply, 2 do
    found[tonumber(reply[i + 1])] = reply[i]
  end
  return found
end

-- Mark the numbers at these positions. Marks are kept as long as the query is known.
local function add_marks(numbers, positions, letters, receipts)
  local added = {}
  for m = 1, #positions do
    local number = numbers[positions[m]]
    local mark = string.format('%.0f', number) .. letters[m] .. receipts[m]
    added[2 * m - 1], added[2 * m] = number, mark
  end
  redis.call('ZADD', querymarks, unpack(added))
  redis.call('PEXPIRE', querymarks, QUERY_KEPT_MS)
end

-- Drop the marks up to a number: their ids have left the log.
local function drop_marks(upto)
  redis.call('ZREMRANGEBYSCORE', querymarks, '-inf', upto)
end

-- Keep a query that holds nothing any more, and the ids whose lease expired, for some time.
local function set_expiry()
  redis.call('PEXPIRE', query, QUERY_KEPT_MS)
  redis.call('PEXPIRE', querylog, EXPIRED_KEPT_MS)
end

-- Drop ids from the log up to a number that nobody asks for any more.
local function trim_log(first, upto)
  if upto > first then
    redis.call('LTRIM', querylog, upto - first, -1)
    redis.call('HSET', query, 'waived', upto)
  end
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
