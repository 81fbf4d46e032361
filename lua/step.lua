--[[
step: record that a step of a delivery begins or is done, or save the cursor of its handler.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   member               13 bytes: the id without slot and checksum
ARGV[3]   receipt              of the delivery
ARGV[4]   state                b the step begins, d it is done, l it is done and its value is lost,
                               c save the cursor; '' only reads
ARGV[5]   name                 of the step, at most 255 bytes; '' for the cursor
ARGV[6]   data                 number of the codec and value (lib/records/steps), or ''
ARGV[7]   most                 bytes that the entry of the message may have, up to 1 MiB
ARGV[8]   wants_entry    ''    or 1: the reply has the entry as it was before
Returns   {code, entry or ''}. 1 stored, or read. 0 the receipt is no longer valid. 2 the step is
          done already. 3 the cancellation of the delivery was requested. 4 the entry has no room.
          Only 1 changes something. Only the state b gets 2 or 3
Cost      O(log L + size of the entry), L = leases of the slot; at most 1000 steps
Atomic    The item replaces the earlier item with its name. While Redis is at maxmemory, it refuses
          to begin a step. The states d, l and c work, because they record what is done. A second
          run writes the same item again, with its time.
]]
--- @keys slot prepare bodies
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/records/steps"
--- @include "lib/writes"
local ENTRY_MOST = 1048576 -- bytes
local NAME_MOST = 255 -- bytes
local now = clock(ARGV[1])
local id, receipt, state, name, data = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
if #id ~= MEMBER then
  fail('ARG', 'id')
end
if not receipt then
  fail('ARG', 'receipt')
end
if not string.find(state, '^[bdlc]?$') then
  fail('ARG', 'state')
end
if #name > NAME_MOST or (name == '') ~= (state == 'c' or state == '') then
  fail('ARG', 'name')
end
local most = whole_number(ARGV[7], 0, ENTRY_MOST, 'most')
local created, cancelling = unpack(redis.call('HMGET', slot, 'created', 'cancelling'))
if not created then
  fail('GONE', slot)
end
local score = redis.call('ZSCORE', prepare, id)
local entry = redis.call('HGET', bodies, id .. 's')
local is_new = not entry
entry = entry or ''
local shown = ARGV[8] == '1' and entry or ''
if not score or tonumber(score) ~= receipt then
  return { 0, '' }
end
if cancelling and state == 'b' then
  --- @include "lib/settle/cancel_requests"
  local is_cancelled = find_requests({ id }, { score })[1]
  if is_cancelled then
    return { 3, shown }
  end
end
if state == '' then
  return { 1, shown }
end
local at, next_at, earlier, count = find_item(entry, name, STEPS)
if state == 'b' and (earlier == 'd' or earlier == 'l') then
  return { 2, shown }
end
local item = nil
item = item_of(state, name, now, data)
if #entry - (next_at - at) + #item > most or count >= STEPS_MOST then
  return { 4, shown }
end
if state ~= 'b' then
  allow_oom(prepare)
end
local changed = string.sub(entry, 1, at - 1) .. item .. string.sub(entry, next_at)
redis.call('HSET', bodies, id .. 's', changed)
if is_new then
  redis.call('HINCRBY', slot, 'steps', 1)
  redis.call('HINCRBY', slot, 'large', 1)
end
return { 1, shown }
