--[[
merge: range-merge. Store a message that waits for its time range, or merge it into the waiting message with the same
merge key, whose consume time it keeps.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   records        hash  member -> record
KEYS[4]   merge index    hash  merge key -> member, then when it opened, epoch ms
KEYS[5]   settled even   set   members settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   failures       hash  of messages that drop_lowest drops
KEYS[8]   audit          zset  open numbers of audited messages: of messages that drop_lowest drops
KEYS[9]   large bodies   hash  member and 8 bytes of the record -> body
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[6]   member               13 bytes: the id without slot and check
ARGV[7]   head                 first 4 bytes of the record; flagged timed and merging
ARGV[8]   envelope             from byte 9 on, without the body; its due is the time range, below 1e12 ms
ARGV[9]   body
ARGV[10]  merge key
ARGV[11]  mode                 first (keep the body), last (replace it), collect (append to the list)
ARGV[12]  max_wait_ms          0: a merge does not move the consume time; else it restarts the time range, at most
                               until this long after the window opened
ARGV[13]  max_bytes            a collected list is closed before it grows over this
Returns   {acceptance number, 's', ''} stored; {number, 'm', waiting member} merged; {number, 'd', ''} duplicate
          {0, 'F', ''} the slot's share of max_length is reached, and drop_lowest makes no room
          {0, 'P', ''} sends are paused
Cost      O(log L + size of the waiting record)
Atomic    Looking for the waiting message and adding to it are one step. Sent twice with one number, it gives the
          first answer. A merged id that its sender keeps is remembered as settled, so merging it again adds nothing.
          A message in flight is not in the index: the next message opens a new window.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/merge_message"
local slot, now = KEYS[1], clock(ARGV[1])
local before = replayed(slot, ARGV[2])
if before then
  local accepted, letter, into = string.match(before, '^(%d+):(%a)(.*)$')
  return { tonumber(accepted), letter, into }
end
local reply = merge_message(KEYS, ARGV, 5, now, ARGV[3], ARGV[4], ARGV[5])
if reply[2] == 's' or reply[2] == 'm' then
  remember(slot, ARGV[2], now, reply[1] .. ':' .. reply[2] .. reply[3])
end
return reply
