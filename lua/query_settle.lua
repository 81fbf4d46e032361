--[[
query_settle: settle messages that a query holds for good, from the beginning of its log.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  member -> record
KEYS[4]   failures       hash  member -> failure entry
KEYS[5]   settled even   set   members settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   audit          zset  open numbers of audited messages
KEYS[8]   query          hash  tail: the newest number in the log; settled; owner and owner_until; missed: how many of
                               the batch that ends at missed_at were not settled
KEYS[9]   query log      list  members that the query holds; the last one has the number `tail`
KEYS[10]  queries        zset  run of a query -> end of its lease, epoch ms
KEYS[11]  StoreQueue     zset  member -> score
KEYS[12]  large bodies   hash  member and 8 bytes of the record -> body
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: which process runs the query
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6]   since                the batch begins after this number
ARGV[7]   upto                 and ends with this one
ARGV[8]   limit                1 to 1000
ARGV[9]   details              text of the failure entries of messages that this query gave back: see query_rollback
Returns   {how many were settled, how many have left the log, how many of the batch could not be settled, ms the other
          owner has left, the other owner}: the last two only where another owner runs the query, and nothing was done.
          Fewer than the limit have left where no more are up to there
Cost      O(k log L), k = limit, L = leases of the slot. In an audited slot also reading their records
Atomic    A message leaves the log in the step that settles it. A message that is no longer in the PrepareQueue, or that
          somebody else holds, only leaves the log. A message of the batch whose lease expired and that waits ever since
          is settled too: its failure entry still says that this query gave it back, so nobody has had it in the
          meantime. Other messages of the batch are counted as missing, and every later call for this batch returns the
          count again, until an owner calls that is not exact. `settled` moves also over numbers of which nothing is
          left: a batch that ends there is done. The first write needs no memory. A second run goes on.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/query"
--- @include "lib/remove_held"
--- @include "lib/settled"
local slot, prepare, records, failures, query, log, queries, store, bodies = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[8], KEYS[9],
  KEYS[10], KEYS[11], KEYS[12]
local now = clock(ARGV[1])
check_names(ARGV[2], ARGV[3])
local since, upto = whole_number(ARGV[6], 0, NUMBER_MOST, 'since'), whole_number(ARGV[7], 0, NUMBER_MOST, 'upto')
local limit = whole_number(ARGV[8], 1, MOST, 'limit')
local created, dedup_ms, settled_turn, blocked, audited, chunk, large = unpack(redis.call('HMGET', slot, 'created', 'dedup_ms',
  'settled_turn', 'blocked', 'audited', 'chunk', 'large'))
if not created then
  fail('GONE', slot)
end
local other, left = other_owner(query, ARGV[3], now)
local first, tail, expired_to = log_range(query, log, 0)
local size = math.min(limit, math.min(upto, tail) - first)
if other then
  return { 0, 0, 0, left, other }
end
redis.call('ZCARD', store)
local done_text, missed_text, missed_at, exact, waived = unpack(redis.call('HMGET', query, 'settled', 'missed', 'missed_at',
  'exact', 'waived'))
local done = tonumber(done_text or 0)
exact = exact == '1'
local gone_before = math.max(since, done, exact and tonumber(waived or 0) or 0)
local missed = missed_at == ARGV[7] and tonumber(missed_text) or 0
local ends = math.min(upto, first + math.max(0, size)) -- the batch is done up to here after this call

-- Note how far the query is, and how many of the batch are missing, for as long as anybody may ask.
local function note_progress(missing)
  missed = missed + missing
  if ends > done then
    redis.call('HSET', query, 'settled', ends)
  end
  if not exact and ends == math.min(upto, tail) then
    redis.call('HDEL', query, 'missed', 'missed_at')
  elseif missing > 0 then
    redis.call('HSET', query, 'missed', missed, 'missed_at', ARGV[7])
  end
end
local with_deadline = redis.call('ZCOUNT', prepare, string.format('%.0f', FAR * 1000), '+inf')
local query_count = redis.call('ZCARD', queries)
local failed, window, last_turn = redis.call('HLEN', failures), tonumber(dedup_ms), tonumber(settled_turn)
if window > 0 then
  check_settled_sets(KEYS[5], KEYS[6], window, last_turn, now)
end
local missing = math.max(0, math.min(upto, first) - gone_before) -- they left the log, and were not settled
if size <= 0 then
  ends = math.min(upto, tail)
  if ends > done or missed_text and not exact then
    allow_oom(prepare)
    note_progress(missing)
  end
  return { 0, 0, missed }
end
local page = redis.call('LRANGE', log, 0, size - 1)
local held_ids, late, settled = page, {}, 0
-- A single query holds all messages that have its deadline. So where these are as many as the ids in its log, they are the
-- same; asking for each score would cost as much again as all the rest.
if query_count > 1 or expired_to > first or with_deadline ~= tail - first then
  --- @include "lib/attempts"
  local scores, entries, waiting = redis.call('ZMSCORE', prepare, unpack(page)), {}, {}
  if expired_to > first then
    entries, waiting = redis.call('HMGET', failures, unpack(page)), redis.call('ZMSCORE', store, unpack(page))
  end
  held_ids = {}
  for i = 1, #page do
    local score = scores[i] and tonumber(scores[i])
    if first + i > expired_to then
      if score and score >= FAR * 1000 then
        held_ids[#held_ids + 1] = page[i]
      elseif first + i > since then
        missing = missing + 1
      end
    elseif first + i > since then
      local _, flags, details = read_entry(entries[i] or '')
      local given_back = flags < 8 and details == ARGV[9]
      if given_back and (score and score < 2000 or waiting[i]) then
        held_ids[#held_ids + 1] = page[i]
        late[#late + 1] = waiting[i] and page[i] or nil
      else
        missing = missing + 1
      end
    end
  end
end
if audited and #held_ids > 0 then
  --- @include "lib/audit"
  account_for(slot, KEYS[7], 'seen', read_numbers(records, held_ids, tonumber(chunk)), now)
end
if #held_ids > 0 then
  local removed = remove_held(slot, prepare, records, failures, large and bodies, held_ids, failed)
  local kept = window > 0 and kept_ids(held_ids)
  if kept then
    remember_settled(slot, KEYS[5], KEYS[6], window, last_turn, now, kept)
  end
  if blocked then
    --- @include "lib/in_order"
    --- @include "lib/wake"
    if unblock(slot, prepare, blocked, now) then
      wake(slot, ARGV[4], ARGV[5])
    end
  end
  if #late > 0 then
    redis.call('ZREM', store, unpack(late))
  end
  settled = removed + #late
  redis.call('HINCRBY', slot, 'settled', settled)
end
redis.call('LTRIM', log, size, -1)
note_progress(missing)
return { settled, size, missed }
