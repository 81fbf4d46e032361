--[[
send: store messages in one slot. An id that is already in the slot, or was settled inside the dedup window, adds nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   records        hash  member -> record
KEYS[4]   settled even   set   members settled in even turns of the dedup window
KEYS[5]   settled odd    set   the same for odd turns
KEYS[6]   failures       hash  of messages that drop_lowest drops
KEYS[7]   merge index    hash  of messages that drop_lowest drops
KEYS[8]   audit          zset  open numbers of audited messages: of messages that drop_lowest drops
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[5]   count                n, the number of messages, 1 to 1000
ARGV[6..] n members (13 bytes each), then n times: head (first 4 bytes of the record), rest (from byte 9 on)
          A time in the record below 1e12 is a delay: it is added to now. A time that has passed is due at once, since a
          command may come late. An expiry counts from due.
Returns   {acceptance number of the last one stored, a letter for each message: s stored, d duplicate; '': all stored}
          {0, 'F'} the slot's share of max_length is reached
Cost      O(n log L), L = messages waiting in the slot
Atomic    All or nothing. Types are checked by reads before the first write; the first write is one that Redis refuses
          at maxmemory. A second run finds the members and answers d.
]]
--- @include "lib/check"
--- @include "lib/clock"
local keys, given, at = KEYS, ARGV, 5
local now, channel, index, created = clock(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local count = whole_number(ARGV[5], 1, 1000, 'count')
if #ARGV ~= 5 + 3 * count then
  fail('ARG', 'count')
end
--- @include "lib/inline/store_messages"
