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
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[5]   member               13 bytes: the id without slot and check
ARGV[6]   head                 first 4 bytes of the record; flagged timed and merging
ARGV[7]   envelope             from byte 9 on, without the body; its due is the time range, below 1e12 ms
ARGV[8]   body
ARGV[9]   merge key
ARGV[10]  mode                 first (keep the body), last (replace it), collect (append to the list)
ARGV[11]  max_wait_ms          0: a merge does not move the consume time; else it restarts the time range, at most
                               until this long after the window opened
ARGV[12]  max_bytes            a collected list is closed before it grows over this
Returns   {acceptance number, 's', ''} stored; {number, 'm', waiting member} merged; {number, 'd', ''} duplicate
          {0, 'F', ''} the slot's share of max_length is reached, and drop_lowest makes no room
Cost      O(log L + size of the waiting record)
Atomic    Looking for the waiting message and adding to it are one step. A merged id is remembered as settled, so
          merging it again adds nothing. A message in flight is not in the index: the next message opens a new window.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/merge_message"
return merge_message(KEYS, ARGV, 4, clock(ARGV[1]), ARGV[2], ARGV[3], ARGV[4])
