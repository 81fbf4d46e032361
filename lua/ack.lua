--[[
ack: settle deliveries for good. `dead` is only counted, if messages have failed. `store` is read and written in a slot
with groups, whose next messages go out.

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
--- @keys slot prepare records failures settled0 settled1 audit dead bodies store
--- @include "lib/split_call"
--- @include "lib/settle/count_failed"
--- @include "lib/member"
--- @include "lib/leases/receipt"
--- @include "lib/read_time"
local RUNS_FROM = 6 -- where the runs begin in ARGV
local call = ARGV[2]
local session, number = split_call(call)
local created, dedup_ms, settled_turn, delivered, blocked, audited, chunk, settled, known, large, grouped, offloaded =
  unpack(redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'delivered', 'blocked', 'audited', 'chunk', 'settled',
    session, 'large', 'groups', 'offloaded'))

-- One delivery in a session that goes on, of a slot without order, audit, large or offloaded bodies, whose id nobody sends
-- again: as most are. This is the long way below without anything that such an ack does not need.
local id, receipt = ARGV[RUNS_FROM + 3], ARGV[RUNS_FROM + 1]
if known and created and #ARGV == RUNS_FROM + 3 and not blocked and not audited and not large and not offloaded
    and string.byte(call, 1) == AT and string.byte(id, 1) < KEPT and tonumber(number) > tonumber(string.match(known, '^%d+')) then
  local score = redis.call('ZSCORE', prepare, id)
  local failed = count_failed()
  if failed == 0 and score and (score == receipt or tonumber(score) == tonumber(receipt)) then
    local now, _, seconds = read_time(ARGV[1])
    if not grouped then
      redis.call('HDEL', records, id)
      redis.call('ZREM', prepare, id)
      redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, number .. ':' .. seconds .. ':1')
      return '1'
    end
    --- @include "lib/groups/group_alone"
    local record, name, text, vtime, waiting = redis.call('HGET', records, id), nil, nil, nil, nil
    if record then
      name = plain_group(string.byte(record, 1) or 0, record, FIXED + 1)
    end
    if name then
      text, vtime, waiting = unpack(redis.call('HMGET', slot, '/' .. name, 'vtime', 'waiting'))
    end
    if text then
      local done, entry, following, priority, tag
      done, entry, following, priority, tag = entry_without(text, tonumber(vtime or 0), id)
      if done then
        if following then
          redis.call('ZCARD', store)
        end
        redis.call('HDEL', records, id)
        redis.call('ZREM', prepare, id)
        if following then
          --- @include "lib/scores/score_text"
          local step = score_step(priority)
          local following_score = score_text(priority, 0.5 - tag * step)
          redis.call('ZADD', store, 'XX', following_score, following)
          redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, number .. ':' .. seconds .. ':1', '/' .. name,
            entry)
        elseif entry then
          redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, number .. ':' .. seconds .. ':1', '/' .. name,
            entry)
        else
          redis.call('HDEL', slot, '/' .. name)
          redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, number .. ':' .. seconds .. ':1')
        end
        if following and waiting and tonumber(waiting) > now then
          --- @include "lib/wake/wake"
          wake(ARGV[3], ARGV[4])
        end
        return '1'
      end
    end
  end
end

--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/settle/remove_held"
--- @include "lib/replay"
--- @include "lib/settle/settled"
local STEP = 1 / DELIVERY_CYCLE -- from a receipt of a run to the next one

-- How many deliveries the runs have together.
--- @inline
local function count_deliveries(runs)
  local count = 0
  for r = 1, runs do
    count = count + whole_number(ARGV[RUNS_FROM - 3 + 3 * r], 1, MOST, 'run')
  end
  return count
end

-- Whether the caller holds all deliveries of the runs, as far as the ranges of their receipts show. `from`: the place of the
-- first member in ARGV. Reading the range of a run is enough where no id of the run can have a receipt of another delivery that
-- looks like one of the run: while fewer than 2048 deliveries have followed the first of the run. Then, where the range holds
-- exactly the ids of the run in order, each of them has exactly its receipt. Asking for each score costs four times as much.
--- @inline
local function are_runs_held(runs, count, from, delivered)
  local all_held, at = runs <= 4 and count > 1, from
  for r = 1, all_held and runs or 0 do
    local place = RUNS_FROM - 3 + 3 * r
    local size, receipt = tonumber(ARGV[place]), ARGV[place + 1]
    local delivery, low = whole_number(ARGV[place + 2], 0, NUMBER_MOST, 'delivery'), tonumber(receipt) or 0
    all_held = size > 1 and delivery > 0 and delivered - delivery < DELIVERY_CYCLE
      and low % 1 == delivery % DELIVERY_CYCLE * STEP and low % 1 + (size - 1) * STEP < 1
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
  return all_held
end

-- The deliveries that the caller holds, by the score of each: (their ids, each once; a letter for every delivery; the audit
-- numbers of those held, which are in ARGV behind `numbers_after`, or nil where that is nil).
--- @inline
local function find_held(runs, count, from, numbers_after)
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, from + count - 1))
  local held_ids, marks, seen, i = {}, {}, {}, 0
  local numbers = numbers_after and {}
  for r = 1, runs do
    local place = RUNS_FROM - 3 + 3 * r
    local receipt = tonumber(ARGV[place + 1])
    for step = 0, tonumber(ARGV[place]) - 1 do
      i = i + 1
      local id = ARGV[from + i - 1]
      if scores[i] and receipt and tonumber(scores[i]) == receipt + step * STEP and not seen[id] then
        seen[id] = true
        held_ids[#held_ids + 1] = id
        if numbers then
          numbers[#held_ids] = ARGV[numbers_after + i]
        end
        marks[i] = '1'
      else
        marks[i] = '0'
      end
    end
  end
  return held_ids, table.concat(marks), numbers
end

local now = clock(ARGV[1])
session, number = session_of(call)
local before = answer_in(known, number)
if before then
  return before
end
if not created then
  fail('GONE', slot)
end
local runs = whole_number(ARGV[5], 1, MOST, 'runs')
local count = count_deliveries(runs)
local from = RUNS_FROM + 3 * runs
local to = from + count - 1
local numbers_given = #ARGV == to + count
if count > 1000 or #ARGV ~= to and not (numbers_given and string.find(ARGV[to + 1], '^[%x.%d]*$')) then
  fail('ARG', 'count')
end
local numbers_after = numbers_given and audited and to or nil

local held_ids, letters, numbers, low, high
local all_held = are_runs_held(runs, count, from, tonumber(delivered or 0))
if all_held then
  if runs == 1 then
    low, high = receipt, string.format('%.17g', tonumber(receipt) + (count - 1) * STEP)
  end
  held_ids, letters = { unpack(ARGV, from, to) }, string.rep('1', count)
  numbers = numbers_after and { unpack(ARGV, to + 1, to + count) }
else
  held_ids, letters, numbers = find_held(runs, count, from, numbers_after)
end
local failed = count_failed()
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
local kept = window > 0 and kept_ids(held_ids)
if kept then
  check_settled_sets(window, last_turn, now)
end
if audited and #held_ids > 0 then
  --- @include "lib/audit"
  numbers = numbers and add_numbers(numbers, parse_number, {}) or read_numbers(held_ids, tonumber(chunk))
  account_for('seen', numbers, now)
end
if #held_ids > 0 then
  local bring_up
  if grouped then
    --- @include "lib/groups/leave_groups"
    bring_up = leaving_groups(held_ids)
  end
  local removed = remove_held(large or offloaded, held_ids, failed, low, high)
  if kept then
    remember_settled(window, last_turn, now, kept)
  end
  if bring_up and bring_up() then
    --- @include "lib/wake/wake"
    wake_sleepers(now, ARGV[3], ARGV[4])
  end
  if blocked then
    --- @include "lib/take/in_order"
    --- @include "lib/wake/wake"
    if unblock(blocked, now) then
      wake(ARGV[3], ARGV[4])
    end
  end
  redis.call('HSET', slot, 'settled', tonumber(settled or 0) + removed, session, kept_answer(number, now, letters))
  if not known then
    sweep_sessions(now, SWEPT)
  end
end
return letters
