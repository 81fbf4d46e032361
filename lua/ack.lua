--[[
ack: settle deliveries for good.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  member -> record
KEYS[4]   failures       hash  member -> failure entry
KEYS[5]   settled even   set   members settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   audit          zset  open numbers of audited messages
KEYS[8]   DeadQueue      zset  only counted, where messages have failed
KEYS[9]   large bodies   hash  member and 8 bytes of the record -> body
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   runs                 r; a run is deliveries whose receipts follow each other in steps of 1/2048
ARGV[6..] r times: how many (n in all, at most 1000), the first one's receipt, the first one's delivery
          number (0 where it is not known); then the n members (13 bytes each); then nothing, or for each of them its
          `<producer>.<number>`, '' where it has none
Returns   a letter for each: 1 settled, 0 the caller no longer holds the lease
Cost      O(n log L), L = leases of the slot. In an audited slot also reading the records, where the numbers are not
          passed
Atomic    Only a member whose score equals the receipt is removed, so a stale ack changes nothing. The first write frees
          memory. Sent twice with one number, it gives the first answer. In a slot in order, the last ack of a batch
          wakes the consumers that wait for the batch to end; elsewhere, any ack those that wait for room.
]]
local slot, prepare, failures, dead, call = KEYS[1], KEYS[2], KEYS[4], KEYS[8], ARGV[2]
--- @include "lib/inline/session"
local s = redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'delivered', 'blocked', 'audited', 'chunk',
  'settled', session, 'given_back', 'large')
local known = s[9]

-- One delivery in a session that goes on, of a slot without order, audit or large bodies, whose id nobody sends again: as
-- most are. It is the long way below without anything that such an ack does not need.
local id = ARGV[9]
if known and s[1] and #ARGV == 9 and not s[5] and not s[6] and not s[11] and string.byte(call, 1) == 64
    and string.byte(id, 1) < 64 and tonumber(number) > tonumber(string.match(known, '^%d+')) then
  local score, receipt = redis.call('ZSCORE', prepare, id), ARGV[7]
  --- @include "lib/inline/count_failed"
  if failed == 0 and score and (score == receipt or tonumber(score) == tonumber(receipt)) then
    --- @include "lib/inline/time"
    redis.call('HDEL', KEYS[3], id)
    redis.call('ZREM', prepare, id)
    redis.call('HSET', slot, 'settled', tonumber(s[8] or 0) + 1, session, number .. ':' .. seconds .. ':1')
    return '1'
  end
end

--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/settled"
local now = clock(ARGV[1])
session, number = session_of(call)
local before = answer_in(slot, known, number)
if before then
  return before
end
if not s[1] then
  fail('GONE', slot)
end
local STEP = 1 / 2048
local runs = whole_number(ARGV[5], 1, 1000, 'runs')
local from, count = 6 + 3 * runs, 0
for r = 1, runs do
  count = count + whole_number(ARGV[3 + 3 * r], 1, 1000, 'run')
end
local to = from + count - 1
local numbers_given = #ARGV == to + count
if count > 1000 or #ARGV ~= to and not (numbers_given and string.find(ARGV[to + 1], '^[%x.%d]*$')) then
  fail('ARG', 'count')
end

-- Reading the range of a run's receipts is enough to know that all its ids are held; asking for each score costs four times
-- as much. It is enough where no id of the run can have a receipt of another delivery that looks like one of the run: while
-- fewer than 2048 deliveries have followed the first of the run, or where no message of the slot was given back since,
-- and so none of the run was leased again. Then, where the range holds exactly the ids of the run in order, each of them
-- has exactly its receipt.
local all_held, at = runs <= 4 and count > 1, from
for r = 1, all_held and runs or 0 do
  local size, receipt = tonumber(ARGV[3 + 3 * r]), ARGV[4 + 3 * r]
  local number, low = whole_number(ARGV[5 + 3 * r], 0, 9e15, 'delivery'), tonumber(receipt) or 0
  all_held = size > 1 and number > 0 and tonumber(s[4] or 0) - number < 2048
    and low % 1 == number % 2048 * STEP and low % 1 + (size - 1) * STEP < 1
  if all_held then
    local high = string.format('%.17g', low + (size - 1) * STEP)
    local in_range = redis.call('ZRANGEBYSCORE', prepare, receipt, high, 'LIMIT', 0, size + 1)
    all_held = #in_range == size
    for i = 1, size do
      all_held = all_held and in_range[i] == ARGV[at + i - 1]
    end
    at = at + size
  end
  if not all_held then
    break
  end
end

local held_ids, letters, numbers_held, low, high
if all_held then
  if runs == 1 then
    low, high = ARGV[7], string.format('%.17g', tonumber(ARGV[7]) + (count - 1) * STEP)
  end
  held_ids, letters = { unpack(ARGV, from, to) }, string.rep('1', count)
  numbers_held = numbers_given and s[6] and { unpack(ARGV, to + 1, to + count) }
else
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, to))
  local marks, seen, i = {}, {}, 0
  held_ids, numbers_held = {}, numbers_given and s[6] and {}
  for r = 1, runs do
    local receipt = tonumber(ARGV[4 + 3 * r])
    for step = 0, tonumber(ARGV[3 + 3 * r]) - 1 do
      i = i + 1
      local id = ARGV[from + i - 1]
      if scores[i] and receipt and tonumber(scores[i]) == receipt + step * STEP and not seen[id] then
        seen[id] = true
        held_ids[#held_ids + 1] = id
        if numbers_held then
          numbers_held[#held_ids] = ARGV[to + i]
        end
        marks[i] = '1'
      else
        marks[i] = '0'
      end
    end
  end
  letters = table.concat(marks)
end
--- @include "lib/inline/count_failed"
local window, last_turn, blocked = tonumber(s[2]), tonumber(s[3]), s[5]
local channel, index, large, bodies = ARGV[3], ARGV[4], s[11], KEYS[9]
local kept = window > 0 and kept_ids(held_ids)
if kept then
  check_settled_sets(KEYS[5], KEYS[6], window, last_turn, now)
end
if s[6] and #held_ids > 0 then
  --- @include "lib/audit"
  local numbers = numbers_held and add_numbers(numbers_held, parse_number, {}) or read_numbers(KEYS[3], held_ids, tonumber(s[7]))
  account_for(slot, KEYS[7], 'seen', numbers, now)
end
if #held_ids > 0 then
  --- @include "lib/inline/settle_held"
  redis.call('HSET', slot, 'settled', tonumber(s[8] or 0) + removed, session, kept_answer(number, now, letters))
  if not known then
    sweep_sessions(slot, now, SWEPT)
  end
end
return letters
