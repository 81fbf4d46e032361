--[[
send: store messages in one slot. A message adds nothing if its id is in the slot, or if its sender
keeps the id and it was settled within the dedup window. A member of a batch adds nothing for a
minute after its end was reported (member_ends). `failures`, `merge`, `audit`, `results` and
`keeping` are for messages that drop_lowest drops, `prepare` is for a hand-over to a sleeping
consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[6]   count                n, the number of messages, 1 to 1000
ARGV[7]   head           ''    or the first 4 bytes of all records. With a head, the messages have
                               no times, and differ only in the rest of their records. Their ids are
                               a run that was made for this call (lib/send/run_members)
ARGV[8..] with a head          the first member, and n rests
          without a head       n members, and n times head and rest
          A member has 13 bytes: the id without slot and checksum. A rest is the record from byte 9
          on.
          A time in the record below 1e12 is a delay, to be added to now. A time that has passed is
          due at once, since a command may come late. An expiry counts from the due time.
          A record with a large body (lib/records/large_bodies) ends with a reference. The client
          has written the body to `bodies` in the transaction of this call
Returns   {acceptance number of the last stored message, a letter for each message: s stored,
          d duplicate; '' if all are stored}
          {0, 'F'} the capacity of the slot is reached; {0, 'P'} sends are paused
Cost      O(n log L), L = messages waiting in the slot; lib/wake/hand_over reads up to 16 KiB more
          for each credit
Atomic    All or nothing. Types are checked by reads before the first write. Redis refuses the first
          write at maxmemory. A call that is sent twice gets the first answer again. If the slot
          does not know the session, or no longer, every id is looked up: a second run answers d for
          messages that are still in the slot. Large bodies of messages that are not stored are
          removed. Plain messages go to the PrepareQueue if sleeping consumers have left credits
          (lib/wake/hand_over); if no connection receives the PUBLISH, they stay in the StoreQueue.
          A send that adds nothing writes a field again, so that a wait for copies covers the
          earlier send.
]]
--- @keys slot store records settled0 settled1 failures merge audit bodies prepare results keeping
--- @include "lib/split_call"
--- @include "lib/slot_fields"
local BEFORE = 7 -- arguments before the messages
local call, created, head, first_member = ARGV[2], ARGV[5], ARGV[7], ARGV[BEFORE + 1]
local session, call_number = split_call(call)
local fields = read_store_fields(session)
local last_call = fields[SESSION] -- number, time and answer; false in a new session

--- @include "alone/send"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/records/large_bodies"
--- @include "lib/records/note_offloaded"
--- @include "lib/results/keep_mark"
--- @include "lib/results/note_marks"
--- @include "lib/scores/score"
--- @include "lib/send/group_entrances"
--- @include "lib/send/run_members"
--- @include "lib/send/send_status"
session, call_number = session_of(call)
local count = whole_number(ARGV[6], 1, MOST, 'count')
if #ARGV ~= BEFORE + (head == '' and 3 * count or 1 + count) then
  fail('ARG', 'count')
end
local members
if head ~= '' then
  members = run_members(first_member, count)
end
local body_names, remove_bodies = false, nil
if redis.call('HLEN', bodies) > 0 then
  --- @include "lib/send/sent_bodies"
  body_names, remove_bodies = sent_names(ARGV, BEFORE, count, head, members), drop_unused
end

-- Return whether the script ends before it stores messages: the call is late, repeated or refused.
--- @inline
local function stores_nothing()
  local last = last_call and string.match(last_call, '^%d+')
  return last == call_number or last and tonumber(last) > tonumber(call_number)
    or fields[CREATED] ~= created or fields[PAUSED_SEND]
end

-- The client has already written the large bodies, so the exits below must not leave them behind.
if body_names then
  local ends_here = stores_nothing()
  if ends_here then
    remove_bodies(body_names)
  end
end
-- The kept answer is checked before the stamp: the topic may have been resized since an earlier
-- copy of the call stored the messages.
local earlier_answer = answer_in(last_call, call_number)
if earlier_answer then
  --- @include "lib/writes"
  write_again(slot, session, last_call)
  local accepted, letters = string.match(earlier_answer, '^(%d+):(.*)$')
  return { tonumber(accepted), letters }
end
if fields[CREATED] ~= created then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
if fields[PAUSED_SEND] then
  return { 0, SENDS_PAUSED }
end
local now = clock(ARGV[1])
local needs_body = is_large(head)
if needs_body and not body_names then
  fail('BODY', bodies)
end
local reply, serves_sleepers = nil, false
-- In a new session, each id is looked up: an earlier copy of the call may have stored the messages.
if head ~= '' and last_call then
  --- @include "lib/send/store_uniform"
  local function rests_of(from)
    return ARGV, BEFORE + from
  end
  local batch = { head = head, members = members, rests_of = rests_of, session = session,
    call_number = call_number }
  local accepted
  accepted, serves_sleepers = store_uniform(batch, fields, now)
  reply = accepted and { accepted, '' }
end
local is_answer_kept = reply ~= nil -- by store_uniform
if not reply then
  --- @include "lib/send/store_messages"
  local given, at = ARGV, BEFORE
  if members then
    append_heads_and_rests(members, head, ARGV, BEFORE + 1)
    given, at = members, 0
  end
  local batch = { given = given, at = at, count = count, large = body_names }
  if fields[OUTCOMES] then
    --- @include "lib/batches/ended_members"
    local ended = ended_members(batch)
    batch.ended = ended
  end
  reply, serves_sleepers = store_messages(batch, fields, now)
end
local letters = reply[2] -- or a status
local are_all_stored = letters == ''
if body_names then
  local stored = 0
  for i = 1, count do
    if body_names[i] and (are_all_stored or string.sub(letters, i, i) == 's') then
      stored = stored + 1
    end
  end
  if stored > 0 then
    redis.call('HINCRBY', slot, 'large', stored)
  end
  if not are_all_stored then
    remove_bodies(body_names)
  end
end
local any_stored = are_all_stored or string.find(letters, 's', 1, true)
if any_stored and not is_answer_kept then
  remember(call, now, reply[1] .. ':' .. letters)
elseif not any_stored and letters ~= FULL then
  -- All messages are duplicates. WAIT needs a write to cover the send that stored them.
  --- @include "lib/writes"
  write_again(slot, 'created', created)
end
if serves_sleepers then
  --- @include "lib/wake/hand_over"
  serve_sleepers(ARGV[3], ARGV[4], now)
end
return reply
