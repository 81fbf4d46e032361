--[[
ack: settle deliveries for good.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  message id -> record
KEYS[4]   failures       hash  message id -> what it failed of
KEYS[5]   settled even   set   ids settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   replay         str   the last answer given to this lane
KEYS[8]   audit          zset  numbers of messages that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               of this call in its lane
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, told to those it wakes
ARGV[5]   runs                 r; a run is deliveries whose receipts follow each other in steps of 1/2048
ARGV[6..] r times: how many (n in all, at most 1000), the first one's receipt, the first one's delivery
          number (0 where it is not known); then the n message ids; then nothing, or for each of them its
          `<producer>.<number>`, '' where it has none
Returns   a letter for each: 1 settled, 0 the lease is no longer the caller's
Cost      O(n log L), L = leases of the slot. In an audited slot also reading their records, where
          their numbers are not told
Atomic    Only a member whose score equals the receipt is removed, so a stale ack changes nothing. The
          first write frees memory. Run twice with one number, it gives the first answer. Of a slot in order,
          the last of a batch wakes those who sleep until another may take.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/settled"
local slot, prepare = KEYS[1], KEYS[2]
local now = clock(ARGV[1])
local before = replayed(KEYS[7], ARGV[2])
if before then
  return before
end
local s = redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'delivered', 'blocked', 'audited', 'chunk')
if not s[1] then
  fail('GONE', slot)
end
local STEP = 1 / 2048
local runs = whole(ARGV[5], 1, 1000, 'runs')
local from, count = 6 + 3 * runs, 0
for r = 1, runs do
  count = count + whole(ARGV[3 + 3 * r], 1, 1000, 'run')
end
local to = from + count - 1
local told = #ARGV == to + count
if count > 1000 or #ARGV ~= to and not (told and string.find(ARGV[to + 1], '^[%x.%d]*$')) then
  fail('ARG', 'count')
end

-- Whether all ids of a run are held can be told without asking for a score, which costs four times as much.
-- An id of ours that was leased again has a later delivery number; while fewer than 2048 deliveries have
-- followed the run's first, none of those looks like one of the run. So when the range of its receipts
-- holds exactly its ids in order, each has exactly its receipt.
local whole_runs, at = runs <= 4 and count > 1, from
for r = 1, whole_runs and runs or 0 do
  local size, receipt = tonumber(ARGV[3 + 3 * r]), ARGV[4 + 3 * r]
  local number, low = whole(ARGV[5 + 3 * r], 0, 9e15, 'delivery'), tonumber(receipt) or 0
  whole_runs = size > 1 and number > 0 and tonumber(s[4] or 0) - number < 2048
    and low % 1 == number % 2048 * STEP and low % 1 + (size - 1) * STEP < 1
  if whole_runs then
    local high = string.format('%.17g', low + (size - 1) * STEP)
    local there = redis.call('ZRANGEBYSCORE', prepare, receipt, high, 'LIMIT', 0, size + 1)
    whole_runs = #there == size
    for i = 1, size do
      whole_runs = whole_runs and there[i] == ARGV[at + i - 1]
    end
    at = at + size
  end
  if not whole_runs then
    break
  end
end

local mine, letters, numbered
if whole_runs then
  mine, letters = { unpack(ARGV, from, to) }, string.rep('1', count)
  numbered = told and s[6] and { unpack(ARGV, to + 1, to + count) }
else
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, to))
  local marks, seen, i = {}, {}, 0
  mine, numbered = {}, told and s[6] and {}
  for r = 1, runs do
    local receipt = tonumber(ARGV[4 + 3 * r])
    for step = 0, tonumber(ARGV[3 + 3 * r]) - 1 do
      i = i + 1
      local id = ARGV[from + i - 1]
      if scores[i] and receipt and tonumber(scores[i]) == receipt + step * STEP and not seen[id] then
        seen[id] = true
        mine[#mine + 1] = id
        if numbered then
          numbered[#mine] = ARGV[to + i]
        end
        marks[i] = '1'
      else
        marks[i] = '0'
      end
    end
  end
  letters = table.concat(marks)
end
local failed, window, turn, blocked = redis.call('HLEN', KEYS[4]), tonumber(s[2]), tonumber(s[3]), s[5]
local channel, index = ARGV[3], ARGV[4]
if window > 0 then
  settled_check(KEYS[5], KEYS[6], window, turn, now)
end
if s[6] and #mine > 0 then
  --- @include "lib/depart"
  local numbers = numbered and numbers_in(numbered, read_number, {}) or numbers_at(KEYS[3], mine, tonumber(s[7]))
  depart(slot, KEYS[8], 'seen', numbers, now)
end
if #mine > 0 then
  --- @include "lib/settle"
  remember(KEYS[7], ARGV[2], letters)
end
return letters
