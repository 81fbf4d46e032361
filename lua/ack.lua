--[[
ack: settle deliveries for good.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  member -> record
KEYS[4]   failures       hash  member -> failure entry
KEYS[5]   settled even   set   members settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   replay         str   the last answer given to this session
KEYS[8]   audit          zset  open numbers of audited messages
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               sequence number of this call in its session
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
          wakes the consumers that wait for the batch to end.
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
-- as much. An id that was leased again has a later delivery number; while fewer than 2048 deliveries have followed the
-- first of the run, none of those looks like a receipt of the run. So where the range holds exactly the ids of the run in
-- order, each of them has exactly its receipt.
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

local held_ids, letters, numbers_held
if all_held then
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
local failed, window, last_turn, blocked = redis.call('HLEN', KEYS[4]), tonumber(s[2]), tonumber(s[3]), s[5]
local channel, index = ARGV[3], ARGV[4]
if window > 0 then
  check_settled_sets(KEYS[5], KEYS[6], window, last_turn, now)
end
if s[6] and #held_ids > 0 then
  --- @include "lib/audit"
  local numbers = numbers_held and add_numbers(numbers_held, parse_number, {}) or read_numbers(KEYS[3], held_ids, tonumber(s[7]))
  account_for(slot, KEYS[8], 'seen', numbers, now)
end
if #held_ids > 0 then
  --- @include "lib/inline/settle_held"
  remember(KEYS[7], ARGV[2], letters)
end
return letters
