--[[
query_settle: settle messages that a query holds for good, from the beginning of its log.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: which process runs the query
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6]   since                the batch begins after this number
ARGV[7]   upto                 and ends with this one
ARGV[8]   limit                1 to 4000
ARGV[9]   details              text of the failure entries of messages that this query gave back:
                               see query_rollback
Returns   {how many were settled, how many ids of the batch are left in the log, how many of the
          batch could not be settled, bytes that were read since this was asked last, ms the other
          owner has left, the other owner}: the last two only where another owner runs the query,
          and nothing was done
Cost      O(k), k = limit, for whole pages of which nothing went elsewhere, while one query holds
          messages of the slot. Otherwise at most 1000 leave the log, in O(log L) each, L = leases
          of the slot. In an audited slot also reading their records
Atomic    A message leaves the log in the step that settles it. A message that is no longer in the
          PrepareQueue, or that somebody else holds, only leaves the log. So does one that
          query_fail took out of the batch: it is not missing, and its mark goes with it. A message
          of the batch whose lease expired and that waits ever since is settled too: its failure
          entry still says that this query gave it back, so nobody has had it in the meantime. Other
          messages of the batch are counted as missing, and every later call for this batch returns
          the count again, until an owner calls that is not exact. `settled` moves also over numbers
          of which nothing is left: a batch that ends there is done. With the last message that the
          query holds its lease ends, and `leases_until` of the slot stays: it may be too early,
          until a rollback corrects it. The first write needs no memory. A second run goes on; bytes
          are returned once.
]]
--- @keys slot prepare records failures settled0 settled1 audit query querylog queries store bodies querymarks
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/query"
--- @include "lib/settle/remove_held"
--- @include "lib/settle/settled"
local now = clock(ARGV[1])
check_names(ARGV[2], ARGV[3])
local since = whole_number(ARGV[6], 0, NUMBER_MOST, 'since')
local upto = whole_number(ARGV[7], 0, NUMBER_MOST, 'upto')
local limit = whole_number(ARGV[8], 1, QUERY_MOST, 'limit')
local created, dedup_ms, settled_turn, blocked, audited, chunk, large, offloaded =
  unpack(redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'blocked', 'audited',
    'chunk', 'large', 'offloaded'))
if not created then
  fail('GONE', slot)
end
local state = read_query()
local left, other = other_owner(state, ARGV[3], now)
local first, tail, expired_to = log_range(state, 0)
local last = math.min(upto, tail)
local size = math.min(limit, last - first)
if other then
  return { 0, 0, 0, 0, left, other }
end
local done, exact = tonumber(state[SETTLED] or 0), state[EXACT] == '1'
local gone_before = math.max(since, done, exact and tonumber(state[WAIVED] or 0) or 0)
local missed = state[MISSED_AT] == ARGV[7] and tonumber(state[MISSED]) or 0
-- Messages that left the log and were not settled.
local missing = math.max(0, math.min(upto, first) - gone_before)

-- Note how far the query is, and how many of the batch are missing, for as long as anybody may ask.
local function note_progress(ends)
  missed = missed + missing
  if ends > done then
    redis.call('HSET', query, 'settled', ends)
  end
  if exact or ends < last then
    if missing > 0 then
      redis.call('HSET', query, 'missed', missed, 'missed_at', ARGV[7])
    end
  elseif state[MISSED] then
    redis.call('HDEL', query, 'missed', 'missed_at')
  end
end
-- Forget the bytes that were read, since they are returned.
local bytes = tonumber(state[BYTES] or 0)
local function forget_bytes()
  if bytes > 0 then
    redis.call('HDEL', query, 'bytes')
  end
end
local query_count, low = redis.call('ZCARD', queries), string.format('%.0f', FAR * 1000)
local failed = redis.call('HLEN', failures)
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
if size <= 0 then
  if last > done or state[MISSED] and not exact then
    allow_oom(prepare)
    note_progress(last)
  end
  forget_bytes()
  return { 0, 0, missed, bytes }
end
-- With the message behind the end, which says whether a page ends there.
local page = redis.call('LRANGE', querylog, 0, size)
local following = page[size + 1]
page[size + 1] = nil
local any_marked = redis.call('ZCOUNT', querymarks, '-inf', first + size + 1) > 0
local held_ids, marked, late, late_scores = page, {}, {}, {}
if any_marked then
  held_ids, marked = {}, read_marks(first + 1, first + size + 1)
  for i = 1, size do
    if not marked[first + i] then
      held_ids[#held_ids + 1] = page[i]
    end
  end
end

-- The page of a message, or nil where the query no longer holds it.
local function page_of(id)
  local score = tonumber(redis.call('ZSCORE', prepare, id) or 0)
  return score >= FAR * 1000 and math.floor(score / 1000) - FAR or nil
end

-- How many messages the pages up to this one have, and the end of their range.
local function count_pages(number)
  local past = string.format('(%.0f', (FAR + number + 1) * 1000)
  return redis.call('ZCOUNT', prepare, low, past), past
end
-- A single query holds all messages that have its deadlines, and pages follow each other in the
-- log. So the pages that end within the first ids are among these, and where they have as many
-- messages, they are the same; asking for each score would cost as much again as all the rest. What
-- was taken out of the batch does not count; if the query holds it again, then under a later
-- number, on a later page.
local high
if query_count == 1 and expired_to == first and #held_ids > 0 and not marked[first + size + 1] then
  local newest, behind = tonumber(state[PAGE] or 0), nil
  if following then
    newest, behind = page_of(held_ids[#held_ids]), page_of(following)
  end
  local count, past
  if newest and (not following or behind and behind > newest) then
    count, past = count_pages(newest)
  elseif newest and behind == newest and not any_marked then
    -- The end is inside a page: settle the pages before it first.
    count, past = count_pages(newest - 1)
    if count == 0 or count >= size or page_of(page[count + 1]) ~= newest then
      past = nil
    else
      size, held_ids = count, { unpack(page, 1, count) }
    end
  end
  high = count == #held_ids and past or nil
end
if not high then
  --- @include "lib/settle/attempts"
  redis.call('ZCARD', store)
  if size > MOST then
    size, page = MOST, { unpack(page, 1, MOST) }
  end
  local scores, entries, waiting, seen = redis.call('ZMSCORE', prepare, unpack(page)), {}, {}, {}
  if expired_to > first then
    entries = redis.call('HMGET', failures, unpack(page))
    waiting = redis.call('ZMSCORE', store, unpack(page))
  end
  held_ids = {}
  for i = 1, #page do
    local score = scores[i] and tonumber(scores[i])
    local stays = not marked[first + i]
    if stays and first + i > expired_to then
      if score and score >= FAR * 1000 then
        held_ids[#held_ids + 1] = page[i]
      elseif first + i > since then
        missing = missing + 1
      end
    elseif stays and first + i > since then
      local _, flags, details = read_entry(entries[i] or '')
      local waits = flags < 8 and details == ARGV[9] and (score and score < 2000 or waiting[i])
      if waits and not seen[page[i]] then -- its lease may have ended twice
        seen[page[i]] = true
        held_ids[#held_ids + 1] = page[i]
        late[#late + 1] = waiting[i] and page[i] or nil
        late_scores[#late_scores + 1] = waiting[i] or nil
      elseif not waits then
        missing = missing + 1
      end
    end
  end
end
local settled = 0
if #held_ids > 0 then
  --- @include "lib/groups/leave_groups"
  --- @include "lib/wake/wake"
  local kept = window > 0 and kept_ids(held_ids)
  if kept then
    check_settled_sets(window, last_turn, now)
  end
  if audited then
    --- @include "lib/audit"
    account_for('seen', read_numbers(held_ids, tonumber(chunk)), now)
  end
  local scores = {}
  for i = 1, #late do
    scores[late[i]] = late_scores[i]
  end
  for i = 1, #held_ids do
    scores[i] = scores[held_ids[i]] or false
  end
  local let_next_out = leaving_groups(held_ids, nil, nil, scores)
  local removed = remove_held(large or offloaded, held_ids, failed, low, high)
  if kept then
    remember_settled(window, last_turn, now, kept)
  end
  if blocked then
    --- @include "lib/take/in_order"
    if unblock(blocked, now) then
      wake(ARGV[4], ARGV[5])
    end
  end
  if #late > 0 then
    redis.call('ZREM', store, unpack(late))
  end
  if let_next_out and let_next_out() then
    wake_sleepers(now, ARGV[4], ARGV[5])
  end
  settled = removed + #late
  redis.call('HINCRBY', slot, 'settled', settled)
end
redis.call('LTRIM', querylog, size, -1)
if any_marked then
  drop_marks(first + size)
end
note_progress(first + size)
if first + size == tail then
  redis.call('ZREM', queries, ARGV[2])
  redis.call('PEXPIRE', query, QUERY_KEPT_MS)
end
forget_bytes()
return { settled, last - first - size, missed, bytes }
