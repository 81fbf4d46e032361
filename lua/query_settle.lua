--[[
query_settle: settle for good what a query holds, from the beginning of its log.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  message id -> record
KEYS[4]   failures       hash  message id -> what it failed of
KEYS[5]   settled even   set   ids settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   audit          zset  numbers of messages that are not accounted for
KEYS[8]   query          hash  tail: the number of the newest in the log; settled; owner, and until when it is that;
                               missed: how many of the batch that ends at missed_at were not settled
KEYS[9]   query log      list  ids of what the query holds; the last one's number is the tail
KEYS[10]  queries        zset  run of a query -> end of its lease, epoch ms
KEYS[11]  StoreQueue     zset  message id -> score
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                who runs it, 1 to 200 bytes
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, told to those it wakes
ARGV[6]   since                the batch begins after this number
ARGV[7]   upto                 and ends with this one
ARGV[8]   limit                1 to 1000
ARGV[9]   told                 what the failures tell of messages that this query gave back: see query_lapse
Returns   {how many were settled, how many have left the log, how many of the batch could not be settled, ms the owner
          has left, the owner}: the last two only where another one has it, and nothing was done. Fewer than the limit
          have left where no more are up to there
Cost      O(k log L), k = limit, L = leases of the slot. In an audited slot also reading their records
Atomic    A message leaves the log in the step that settles it. One that the PrepareQueue has no more, or has for
          somebody else, only leaves the log. One of the batch that has lapsed, and waits ever since, is settled
          too: its failure still tells that this query gave it back, so nobody has had it in the meantime. What is
          neither is counted, and told again to whoever asks about this batch, until an owner does that is not
          exact. `settled` moves also over numbers of which nothing is left: a batch that ends there is done. The
          first write needs no memory. Run twice, it goes on.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drain"
--- @include "lib/query"
--- @include "lib/settled"
local slot, prepare, query, log, queries, store = KEYS[1], KEYS[2], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local now = clock(ARGV[1])
names(ARGV[2], ARGV[3])
local since, upto = whole(ARGV[6], 0, 9e15, 'since'), whole(ARGV[7], 0, 9e15, 'upto')
local limit = whole(ARGV[8], 1, 1000, 'limit')
local s = redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'blocked', 'audited', 'chunk')
if not s[1] then
  fail('GONE', slot)
end
local other, left = foreign(query, ARGV[3], now)
local first, tail, lapsed = extent(query, log, 0)
local size = math.min(limit, math.min(upto, tail) - first)
if other then
  return { 0, 0, 0, left, other }
end
redis.call('ZCARD', store)
local q = redis.call('HMGET', query, 'settled', 'missed', 'missed_at', 'exact', 'waived')
local done, exact = tonumber(q[1] or 0), q[4] == '1'
local gone_before = math.max(since, done, exact and tonumber(q[5] or 0) or 0)
local missed = q[3] == ARGV[7] and tonumber(q[2]) or 0
local ends = math.min(upto, first + math.max(0, size)) -- what is done after this call

-- note: how far the query is, and what of the batch is missing, for as long as anybody may ask.
local function note(missing)
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
local all = redis.call('ZCOUNT', prepare, string.format('%.0f', FAR * 1000), '+inf')
local holders = redis.call('ZCARD', queries)
local failed, window, turn, blocked = redis.call('HLEN', KEYS[4]), tonumber(s[2]), tonumber(s[3]), s[4]
local channel, index = ARGV[4], ARGV[5]
if window > 0 then
  settled_check(KEYS[5], KEYS[6], window, turn, now)
end
local missing = math.max(0, math.min(upto, first) - gone_before) -- they left the log, and were not settled
if size <= 0 then
  ends = math.min(upto, tail)
  if ends > done or q[2] and not exact then
    drain(prepare)
    note(missing)
  end
  return { 0, 0, missed }
end
local page = redis.call('LRANGE', log, 0, size - 1)
local mine, late, settled = page, {}, 0
-- A single query holds whatever has that deadline. So where that is as many as its log has, it is the same;
-- asking for each score would cost as much again as all the rest.
if holders > 1 or lapsed > first or all ~= tail - first then
  local scores, told, waits = redis.call('ZMSCORE', prepare, unpack(page)), {}, {}
  if lapsed > first then
    told, waits = redis.call('HMGET', KEYS[4], unpack(page)), redis.call('ZMSCORE', store, unpack(page))
  end
  mine = {}
  for i = 1, #page do
    local score = scores[i] and tonumber(scores[i])
    if first + i > lapsed then
      if score and score >= FAR * 1000 then
        mine[#mine + 1] = page[i]
      elseif first + i > since then
        missing = missing + 1
      end
    elseif first + i > since then
      local same = told[i] and string.sub(told[i], 4) == ARGV[9]
      if same and (score and score < 2000 or waits[i]) then
        mine[#mine + 1] = page[i]
        late[#late + 1] = waits[i] and page[i] or nil
      else
        missing = missing + 1
      end
    end
  end
end
if s[5] and #mine > 0 then
  --- @include "lib/depart"
  depart(slot, KEYS[7], 'seen', numbers_at(KEYS[3], mine, tonumber(s[6])), now)
end
if #mine > 0 then
  --- @include "lib/settle"
  settled = gone
  if #late > 0 then
    redis.call('ZREM', store, unpack(late))
    redis.call('HINCRBY', slot, 'settled', #late)
    settled = gone + #late
  end
end
redis.call('LTRIM', log, size, -1)
note(missing)
return { settled, size, missed }
