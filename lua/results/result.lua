--[[
result: read where messages are, and how they have ended. Changes nothing.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] members              1 to 1000, each 13 bytes: the id without slot and checksum
Returns   {for each member, four values: a letter, s waiting, p in flight, d dead (also in the
          trash), g gone; 1 if its record has the mark to keep the result, else 0; its entry
          (lib/results/results), or ''; the end of keeping, epoch ms, or 0}. The list is shorter
          than the members if the entries have more than 1 MiB, or the records more than 4 MiB. It
          has at least one member. The caller asks for the others again
Cost      O(k log L + size of records and entries), k = members, L = messages of the slot. Records
          are read only in a slot with `outcomes`
Atomic    Reads only: one moment of one slot. A message that waits or is in flight has not ended, so
          its only entry is its progress. An entry past its keeping is not returned.
]]
--- @keys slot store prepare records dead trash results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/results/keep_mark"
local REPLY_BYTES = 1048576 -- of entries
local RUNNING = 114 -- the first byte of an entry: r
local now = clock(ARGV[1])
if #ARGV < 2 or #ARGV > 1 + MOST then
  fail('ARG', 'ids')
end
local created, outcomes = unpack(redis.call('HMGET', slot, 'created', 'outcomes'))
if not created then
  fail('GONE', slot)
end
-- A key of a wrong type stops the script here.
redis.call('HLEN', records)
redis.call('ZCARD', trash)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)

-- Return the letter of the queue that a message is in.
local function queue_of(id)
  return redis.call('ZSCORE', store, id) and 's'
    or redis.call('ZSCORE', prepare, id) and 'p'
    or redis.call('ZSCORE', dead, id) and 'd'
    or redis.call('ZSCORE', trash, id) and 'd'
    or 'g'
end

-- Return the entry of a message that is in this queue, and the end of its keeping; '' and 0 if it
-- has none.
local function entry_of(id, letter)
  local entry, lives = redis.call('HGET', results, id), letter == 's' or letter == 'p'
  if not entry or lives ~= (string.byte(entry, 1) == RUNNING) then
    return '', 0
  end
  local ends = not lives and tonumber(redis.call('ZSCORE', keeping, id) or 0) or 0
  if not lives and ends <= now then
    return '', 0
  end
  return entry, ends
end

local reply, entry_bytes, record_bytes = {}, 0, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  if #id ~= MEMBER then
    fail('ARG', 'id')
  end
  local letter, keeps, entry, ends = queue_of(id), 0, '', 0
  if outcomes then
    local record = letter ~= 'g' and redis.call('HGET', records, id) or ''
    keeps = (keep_of(record) or 0) > 0 and 1 or 0
    entry, ends = entry_of(id, letter)
    entry_bytes, record_bytes = entry_bytes + #entry, record_bytes + #record
  end
  if i > 2 and (entry_bytes > REPLY_BYTES or record_bytes > READ_BYTES) then
    break
  end
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = letter, keeps, entry, ends
end
return reply
