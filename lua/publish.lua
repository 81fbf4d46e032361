--[[
publish: move the next entry of a stage into the queue. The entry has messages as send stores them,
or one message as merge stores it. Messages that have moved are no longer in the stage, so they
cannot move twice. In the end, a published stage has one empty text. `failures`, `audit`, `results`
and `keeping` are for messages that drop_lowest drops, `prepare` is for a hand-over to a sleeping
consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[5]   created              the topic's stamp as the caller opened it; another stamp is an error
Returns   {elements left in the stage, stored, duplicates, merged}; 0 elements: all is published
          {0, 'F'} the capacity of the slot is reached, and nothing was moved
          {0, 'P'} sends are paused, and nothing was moved
Cost      O(n log L), n = messages of the entry, at most 1000, L = messages waiting in the slot
Atomic    All of an entry or nothing, by the rules of send and merge. Redis refuses the first write
          at maxmemory. If the ids were made for this entry ('p'), only the first and the last id
          are looked up, and settled ids are not. A call that is sent twice gets the first answer
          again; another call continues. A missing stage is an error: it has expired, or never
          existed.
]]
--- @keys slot store records settled0 settled1 failures merge audit stage bodies prepare results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/records/note_offloaded"
--- @include "lib/results/keep_mark"
--- @include "lib/results/note_marks"
--- @include "lib/scores/score"
--- @include "lib/send/group_entrances"
--- @include "lib/send/run_members"
--- @include "lib/send/send_status"
--- @include "lib/slot_fields"
local RUN_ENTRY, MERGE_ENTRY = 'p', 'm' -- first elements of entries, which stage_push describes
local MERGE_ELEMENTS = 9
local now = clock(ARGV[1])
local length = redis.call('LLEN', stage)
local session, call_number = session_of(ARGV[4])
local fields = read_store_fields(session)
local earlier_answer = answer_in(fields[SESSION], call_number)
if earlier_answer then
  --- @include "lib/writes"
  write_again(slot, session, fields[SESSION])
  return cmsgpack.unpack(earlier_answer)
end
if fields[CREATED] ~= ARGV[5] then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
if fields[PAUSED_SEND] then
  return { 0, SENDS_PAUSED }
end
local packed = redis.call('LINDEX', stage, 0)
if not packed then
  fail('STAGE', stage)
end
if packed == '' then
  --- @include "lib/writes"
  write_again(slot, 'created', ARGV[5])
  return { 0, 0, 0, 0 }
end
local entry, serves_sleepers = cmsgpack.unpack(packed), false
local elements, count = 1, #entry / 3 -- elements of the stage, and messages in them
local given, letters = entry, nil -- letters: as in the reply of send, or a status
if entry[1] == RUN_ENTRY then
  --- @include "lib/send/store_uniform"
  local head, first = entry[2], entry[3]
  count = entry[4]
  if type(head) ~= 'string' or type(first) ~= 'string' or type(count) ~= 'number' then
    fail('STAGE', stage)
  end
  if count < 1 or count > MOST or count % 1 > 0 or length < 1 + count
      or (string.byte(head, 1) or 0) % HEADERS >= COLLECTS then
    fail('STAGE', stage)
  end
  elements, given = 1 + count, run_members(first, count)
  local function rests_of(from, to)
    return redis.call('LRANGE', stage, from, to), 0
  end
  local batch = { head = head, members = given, rests_of = rests_of }
  local stored_all
  stored_all, serves_sleepers = store_uniform(batch, fields, now)
  if stored_all then
    letters = ''
  else
    append_heads_and_rests(given, head, redis.call('LRANGE', stage, 1, count), 0)
  end
end
if not letters then
  --- @include "lib/scores/timed_score"
  --- @include "lib/send/plan_drop_lowest"
  --- @include "lib/send/dedup_window"
  local reply
  if entry[1] == MERGE_ENTRY then
    --- @include "lib/send/merge_messages"
    if #entry ~= MERGE_ELEMENTS then
      fail('STAGE', stage)
    end
    local id, head, rest, body, _, mode, max_wait, max_bytes = unpack(entry, 2)
    local options = head .. mode .. ' ' .. max_wait .. ' ' .. max_bytes .. ' ' .. id
    local messages = read_messages({ options, rest, body }, 0, 1, fields[SESSION])
    local is_stored, _
    reply, _, is_stored = merge_messages(messages, fields, now, ARGV[2], ARGV[3])
    count = 1
    if is_stored then
      redis.call('HSET', slot, 'accepted', reply[1])
    end
  else
    --- @include "lib/send/store_messages"
    if count < 1 or count > MOST or count % 1 > 0 then
      fail('STAGE', stage)
    end
    local batch = { given = given, at = 0, count = count, large = false }
    reply, serves_sleepers = store_messages(batch, fields, now)
  end
  letters = reply[2]
end
if letters == FULL then
  return { 0, FULL }
end
local duplicates, merged, _ = 0, 0, nil
if letters ~= '' then
  _, duplicates = string.gsub(letters, 'd', '')
  _, merged = string.gsub(letters, 'm', '')
end
local stored = count - duplicates - merged
if length > elements then
  redis.call('LTRIM', stage, elements, -1)
else -- the key stays, because a missing stage means that it has expired
  redis.call('LTRIM', stage, 0, 0) -- needs no memory: after it, Redis checks no more
  redis.call('LSET', stage, 0, '')
end
local reply = { length - elements, stored, duplicates, merged }
remember(ARGV[4], now, cmsgpack.pack(reply))
if serves_sleepers then
  --- @include "lib/wake/hand_over"
  serve_sleepers(ARGV[2], ARGV[3], now)
end
return reply
