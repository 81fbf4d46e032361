--[[
merge: store messages that wait for their time range, or merge each into the waiting message with
the same merge key, which keeps its consume time. The messages are handled in their order, as if
each had a call of its own. `failures`, `audit`, `results` and `keeping` are for messages that
drop_lowest drops.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[6..] for each message, 1 to 1000: options, envelope, body
          options: head, `<mode> <max_wait_ms> <max_bytes> <member>`; or '' for the options of the
          previous message
            head         first 4 bytes of the record; flagged timed and merging
            mode         first (keep the body), last (replace it), collect (append to the list)
            max_wait_ms  0: a merge does not move the consume time. Otherwise a merge restarts the
                         time range, but ends it at most max_wait_ms after the window was opened
            max_bytes    a collected list is closed before it exceeds this size
            member       13 bytes: the id without slot and checksum. All messages but the first may
                         leave it out. Then the ids are a run that was made for this call
                         (lib/send/run_members)
          envelope: the record from byte 9 on, without the body; its due is the time range, below
          1e12 ms
Returns   {acceptance number of the last stored message, a letter for each message, members that
          were merged into, one for each m}
          s stored, m merged, d duplicate. If many waiting records are long (READ_MOST in
          lib/send/merge_messages), the last messages have no letter, and changed nothing
          {0, 'F', ''} the capacity of the slot is reached, and drop_lowest makes no room for all
          messages that open a window
          {0, 'P', ''} sends are paused
Cost      O(n log L + size of the waiting records), n = messages, L = messages waiting in the slot.
          A caller sends up to 400 messages of 256 KiB in all, so that a call takes at most 5 ms
Atomic    The waiting messages are found and changed in one step. A refused call changes nothing. A
          call that is sent twice gets the first answer again. A merged id that its sender keeps is
          remembered as settled, so merging it again adds nothing. A message in flight is not in the
          index: the next message opens a new window. Room is made after all have merged, so a
          dropped message takes with it all messages that merged into it.
]]
--- @keys slot store records merge settled0 settled1 failures audit bodies results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/send/merge_messages"
--- @include "lib/send/send_status"
local BEFORE = 5 -- arguments before the messages
local call, created = ARGV[2], ARGV[5]
local session, call_number = session_of(call)
local count = (#ARGV - BEFORE) / OF_EACH
if count < 1 or count > MOST or count % 1 > 0 then
  fail('ARG', 'count')
end
local fields = read_store_fields(session)
local earlier_answer = answer_in(fields[SESSION], call_number)
if earlier_answer then
  --- @include "lib/writes"
  write_again(slot, session, fields[SESSION])
  local accepted, letters, into = string.match(earlier_answer, '^(%d+):(%a+):(.*)$')
  return { tonumber(accepted), letters, into }
end
if fields[CREATED] ~= created then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
if fields[PAUSED_SEND] then
  return { 0, SENDS_PAUSED, '' }
end
local now = clock(ARGV[1])
local messages = read_messages(ARGV, BEFORE, count, fields[SESSION])
local reply, is_changed, is_stored = merge_messages(messages, fields, now, ARGV[3], ARGV[4])
if is_changed then
  local answer = session_value(call_number, now, reply[1] .. ':' .. reply[2] .. ':' .. reply[3])
  if is_stored then
    redis.call('HSET', slot, 'accepted', reply[1], session, answer)
  else
    redis.call('HSET', slot, session, answer)
  end
  if not fields[SESSION] then
    sweep_sessions(now, SWEPT)
  end
elseif reply[2] ~= FULL then -- all messages are duplicates: WAIT needs a write
  --- @include "lib/writes"
  write_again(slot, 'created', created)
end
return reply
