--[[
Queries: readers that receive messages in order and read the same batch again until they settle it,
as Spark's streaming queries do.

The messages of a query are in the PrepareQueue with a deadline that never comes, and in the query's
log with growing numbers. The key `queries` has one lease for all messages of a query. The log is a
list: its last id has the number `tail`, and each id before it has the number before. Ids leave the
log at its beginning.

The messages of one query_take are a page. They have the same deadline: QUERY_DEADLINE plus the
number of the page, which grows along the log. So pages at the beginning of the log are one range of
scores of the PrepareQueue.

After the lease has expired, ids may stay in the log for a time, up to the number `lapsed_to`. The
query no longer has these messages in flight, but they may be in a batch that it has completed. They
stay for an owner that is `exact`: it ends a batch only after it has read the whole batch.

Messages that query_fail takes out of a batch keep their numbers in the log until the batch is
settled. The key `querymarks` has marks for these numbers. The messages are not in flight for the
query any more, and do not count as missing. The same message may come again under another number.

A query has one owner, the process that runs it. Only query_renew makes another process the owner.
The owner renews its ownership in the first slot of the topic. A process reads the ownership there
before it takes over the query in the other slots.

Fields of a query's hash:

  tail                 newest number in the log
  read                 newest number that was handed out
  settled              number up to which the query has settled
  waived               number up to which ids were dropped from the log, without being settled
  lapsed_to, exact     see above
  owner, owner_until   the owner, and until when; the time only in the first slot
  page                 number of the last page
  missed, missed_at    how many messages of the batch that ends at `missed_at` were not settled
  bytes                of records and bodies that were read since the last query_settle
  report               of query_renew
]]
--- @needs query querylog querymarks
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
-- 400 days: after that, the numbers of a silent query without messages may begin with 1 again.
local QUERY_KEPT_MS = 34560000000
local EXPIRED_KEPT_MS = 2592000000 -- 30 days: how long the log keeps ids whose lease has expired
-- Fields of a query, and the place of each in the list that read_query returns. A field that the
-- query does not have is false.
local OWNER, OWNER_UNTIL, TAIL, LAPSED_TO, EXACT, SETTLED = 1, 2, 3, 4, 5, 6
local READ, WAIVED, MISSED, MISSED_AT, PAGE, BYTES = 7, 8, 9, 10, 11, 12

-- Return the fields of a query, by their places.
local function read_query()
  return redis.call('HMGET', query, 'owner', 'owner_until', 'tail', 'lapsed_to', 'exact', 'settled',
    'read', 'waived', 'missed', 'missed_at', 'page', 'bytes')
end

-- Return the ms until the ownership ends, negative after that, and the owner. Returns 0 and '' if
-- the query has no owner. Slots other than the first do not know the time: it counts as over.
local function owner_of(state, now)
  local left = state[OWNER_UNTIL] and tonumber(state[OWNER_UNTIL]) - now or -QUERY_KEPT_MS
  return state[OWNER] and left or 0, state[OWNER] or ''
end

-- Return the same if another owner runs the query, else nothing.
local function other_owner(state, owner, now)
  if state[OWNER] and state[OWNER] ~= owner then
    return owner_of(state, now)
  end
end

-- Return three numbers of the log: `before_log`, `tail` and `expired_to`. Each is the last number
-- of its part:
--
--   .. before_log    .. expired_to        .. tail
--   have left it     lease has expired    in flight for the query, or marked
--
-- `from`: newest number that the caller knows. Redis may have lost its newest numbers.
local function log_range(state, from)
  local tail = math.max(from, tonumber(state[TAIL] or 0))
  local before_log = tail - redis.call('LLEN', querylog)
  local expired_to = math.min(tail, tonumber(state[LAPSED_TO] or 0))
  return before_log, tail, math.max(before_log, expired_to)
end

-- Return by number the marks of messages that query_fail has taken out of the batch. A mark is the
-- number, r (given back for a retry) or d (dead), and the receipt that the message had.
local function read_marks(low, high)
  local found = {}
  local reply = redis.call('ZRANGEBYSCORE', querymarks, low, high, 'WITHSCORES')
  for i = 1, #reply, 2 do
    found[tonumber(reply[i + 1])] = reply[i]
  end
  return found
end

-- Mark the numbers at these positions. Marks are kept as long as the query's hash.
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

-- Drop the marks up to a number whose ids have left the log.
local function drop_marks(upto)
  redis.call('ZREMRANGEBYSCORE', querymarks, '-inf', upto)
end

-- Let a query without messages expire, and its log.
local function set_expiry()
  redis.call('PEXPIRE', query, QUERY_KEPT_MS)
  redis.call('PEXPIRE', querylog, EXPIRED_KEPT_MS)
end

-- Drop ids from the log up to a number, which no owner needs.
local function trim_log(before_log, upto)
  if upto > before_log then
    redis.call('LTRIM', querylog, upto - before_log, -1)
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
