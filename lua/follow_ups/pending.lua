--[[
pending: list the targets of the pending entries of a slot. Changes nothing.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   offset               targets to pass over
ARGV[3]   limit                most targets to return, 0 to 1000.
Returns   {the server's time in epoch ms, number of entries in the slot, number of targets, number
          of ends of batch members that are not reported (lib/batches/batch), number of messages
          that are to be registered with their event (event_checks), and four values for each
          target: its name; the time in epoch ms from which a process may send its entries; number
          of its first entry, which is at least the epoch us of its ack; number of its entries}.
          They are sorted by the time from which a process may send their entries.
Cost      O(n log P), n = targets, P = pending entries of the slot
Atomic    Reads only: one moment of one slot.
]]
--- @keys slot pending targets keeping waits
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/follow_ups/pending"
local now = clock(ARGV[1])
local offset = whole_number(ARGV[2], 0, EXACT_MOST, 'offset')
local limit = whole_number(ARGV[3], 0, MOST, 'limit')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local reply = { now, redis.call('ZCARD', pending), redis.call('ZCARD', targets),
  redis.call('ZCOUNT', keeping, '+inf', '+inf'), redis.call('ZCOUNT', waits, '-inf', now) }
local page = {}
if limit > 0 then
  page = redis.call('ZRANGE', targets, offset, offset + limit - 1, 'WITHSCORES')
end
for i = 1, #page, 2 do
  local target = page[i]
  local entry = first_entries(target, 1)[1] or ''
  reply[#reply + 1], reply[#reply + 2] = target, tonumber(page[i + 1])
  reply[#reply + 1] =
    tonumber(string.sub(entry, #target + 2, #target + 1 + NUMBER_DIGITS)) or 0
  reply[#reply + 1] =
    redis.call('ZLEXCOUNT', pending, '[' .. target .. ':', '(' .. target .. ';')
end
return reply
