--[[
pending_send: store follow-ups that another slot has as pending entries, each once. This is the
second step, after ack_then and before pending_settle. `failures`, `merge`, `audit`, `bodies`,
`results` and `keeping` are for messages that drop_lowest drops, `prepare` is for a hand-over to a
sleeping consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[5]   source               the slot that has the entries: `<topic>:<index>`
ARGV[6..] entries (lib/follow_ups/entry), at most 1000, 16 MiB in all, the numbers in growing order.
          The record is as for send.
Returns   {how many entries are stored, from the first on, by this call or an earlier call; a letter
          if some are not stored: p sends are paused, f the slot is full (max_length); how many of
          the stored entries an earlier call has stored; a letter for each of the others: s stored,
          d duplicate; '' if all are stored}.
Cost      O(n log L), n = entries, L = messages waiting in the slot.
Atomic    The field `<` and source of the slot has the highest number that was stored. An entry
          with a number up to this number is not stored again, even if its message is settled.
          Its caller sends the entries of a source in their order, so no lower number comes later.
          A follow-up whose id is in the slot, or was settled within the dedup window, adds nothing,
          as in send. Redis refuses the first write at maxmemory. A second run stores nothing.
]]
--- @keys slot store records settled0 settled1 failures merge audit bodies prepare results keeping
--- @include "lib/add"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/follow_ups/entry"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/records/record_bytes"
--- @include "lib/slot_fields"
local FIRST = 6 -- first argument of the entries
local now = clock(ARGV[1])
local source = ARGV[5]
local n = #ARGV - FIRST + 1
if n < 1 or n > MOST then
  fail('ARG', 'count')
end
if not string.find(source, '^[%w._-]+:%d+$') or #source > 133 then
  fail('ARG', 'source')
end
local fields = read_store_fields('<' .. source)
if fields[CREATED] ~= ARGV[4] then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end

-- Return how many entries have a number up to `highest`. The numbers must grow. So after the first
-- number above `highest`, only the last number is checked.
--- @inline
local function count_stored(highest)
  local count, last = 0, ''
  for i = 1, n do
    local entry = ARGV[FIRST + i - 1]
    local digits = string.sub(entry, 1, NUMBER_DIGITS)
    if #entry < ENTRY_RECORD + HEAD - 1 then
      fail('ARG', 'entry')
    end
    if digits <= last then
      fail('ARG', 'order')
    end
    last = digits
    if i == n or i == count + 1 then
      local number = whole_number(digits, 0, NUMBER_MOST, 'number')
      if number <= highest then
        count = i
      end
    end
  end
  return count
end

-- Return how many of the new entries the slot has room for.
local function count_room(new)
  local capacity = tonumber(fields[CAPACITY])
  if capacity == 0 or fields[OVERFLOW] == 'drop_lowest' then
    return new
  end
  return math.max(0, math.min(new, capacity - redis.call('ZCARD', store)))
end

local stored = count_stored(tonumber(fields[SESSION] or -1)) -- the field of the source
local earlier, letters = stored, ''
local new, letter, serves_sleepers = n - stored, '', false
if new > 0 and fields[PAUSED_SEND] then
  new, letter = 0, 'p'
elseif new > 0 and count_room(new) < new then
  new, letter = count_room(new), 'f'
end
if new > 0 then
  --- @include "lib/records/note_offloaded"
  --- @include "lib/results/keep_mark"
  --- @include "lib/results/note_marks"
  --- @include "lib/scores/score"
  --- @include "lib/send/group_entrances"
  local from, members, rests, head, is_stored = FIRST + stored - 1, {}, {}, nil, false
  for i = 1, new do
    local entry = ARGV[from + i]
    local own_head = string.sub(entry, ENTRY_RECORD, ENTRY_RECORD + HEAD - 1)
    members[i] = string.sub(entry, ENTRY_MEMBER, ENTRY_RECORD - 1)
    rests[i] = string.sub(entry, ENTRY_RECORD + HEAD)
    head = (i == 1 or head == own_head) and string.byte(entry, ENTRY_MEMBER) < KEPT and own_head
  end
  local first_byte, priority = 0, 0
  if new >= FEW and head then
    first_byte, priority = split_head(head)
  end
  if priority >= PRIORITY_MIN and priority < PRIORITY_END and first_byte % COLLECTS == 0 then
    -- Many entries with one head, no times, and ids that no other send has.
    --- @include "lib/send/store_uniform"
    local function rests_of(first)
      return rests, first - 1
    end
    local batch = { head = head, members = members, rests_of = rests_of }
    is_stored, serves_sleepers = store_uniform(batch, fields, now)
  end
  if not is_stored then
    --- @include "lib/send/store_messages"
    for i = 1, new do
      members[new + 2 * i - 1] = string.sub(ARGV[from + i], ENTRY_RECORD, ENTRY_RECORD + HEAD - 1)
      members[new + 2 * i] = rests[i]
    end
    local batch, reply = { given = members, at = 0, count = new, large = false }, nil
    reply, serves_sleepers = store_messages(batch, fields, now)
    letters = reply[2]
    if letters == FULL then -- drop_lowest has no room for all of them, or they are the lowest
      new, letter, letters = 0, 'f', ''
    end
  end
end
if new > 0 then
  stored = stored + new
  local last = string.sub(ARGV[FIRST + stored - 1], 1, NUMBER_DIGITS)
  redis.call('HSET', slot, '<' .. source, last)
else
  --- @include "lib/writes"
  write_again(slot, 'created', ARGV[4])
end
if serves_sleepers then
  --- @include "lib/wake/hand_over"
  serve_sleepers(ARGV[2], ARGV[3], now)
end
return { stored, letter, earlier, letters }
