--[[
resize_scan: does a page of a slot's records have messages from before the topic was resized, which newer ones in other
slots must not overtake? Changes nothing. `upto` of the slot is the last message from before the resize.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp since the resize; another stamp is an error
ARGV[3]   cursor               0 at first, then the cursor of the last answer; one of another server begins anew
ARGV[4]   limit                1 to 1000, about so many records a page
Returns   {cursor of the next page, 0 at the end; how many such messages the page has; the number of the slot's newest
          delivery}. Messages that are not due yet and dead letters do not count: nothing waits for them, but for the retry of a
          group in order. Each group that is stopped counts, too: what is sent to it now is in another slot, which does
          not know of that
Cost      O(limit), at most about 16 MiB of records
Atomic    Reads only. A caller that asks for a page until it has none, and then goes on to the next, has seen at the end that
          none is left: a record that is there from the first page to the last is on one of them (one HSCAN). That holds on
          one server until it is restarted: another one has the records in another order, so a cursor names its server.
]]
--- @keys slot store prepare records
--- @include "lib/check"
--- @include "lib/records/record"
--- @include "lib/clock"
--- @include "lib/groups/group_entries"
--- @include "lib/scan_cursor"
--- @include "lib/scores/score_ranges"
local now = clock(ARGV[1])
local created, chunk, last_before, delivered, grouped, paused, held = unpack(redis.call('HMGET',
  slot, 'created', 'chunk', 'upto', 'delivered', 'groups', 'groups_paused', 'groups_held'))
local in_order = grouped and string.find(grouped, '^%d+:1')

-- Whether a message that waits for its time is the retry of a group in order, which waits for it.
local function is_awaited_retry(record, id)
  local name = in_order and group_of(record) or ''
  local entry, member = name ~= '' and redis.call('HGET', slot, '/' .. name), nil
  if entry then
    member = select(4, struct.unpack(GROUP_ENTRY, entry))
  end
  return member == id
end

if created ~= ARGV[2] then
  fail(created and 'ANEW' or 'GONE', slot)
end
local limit = math.min(whole_number(ARGV[4], 1, MOST, 'limit'), 4 * tonumber(chunk))
local cursor, server = read_cursor(ARGV[3])
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
redis.call('HLEN', records)
if not last_before then
  return { '0', 0, tonumber(delivered or 0) } -- a slot that this resize has created
end
local upto = tonumber(last_before)
local page, before = redis.call('HSCAN', records, cursor, 'COUNT', limit), tonumber(paused or 0) + tonumber(held or 0)
for i = 1, #page[2], 2 do
  local id, record = page[2][i], page[2][i + 1]
  -- Records have the low 32 bits of the number; it is older than the resize if it is at most 2^31 back from `upto`.
  if #record >= FIXED and (upto - struct.unpack('>I4', record, 5)) % ACCEPTED_CYCLE < ACCEPTED_CYCLE / 2 then
    local score = redis.call('ZSCORE', store, id)
    if score and (tonumber(score) < TIMED_MIN or tonumber(score) < now + 1 or is_awaited_retry(record, id))
        or redis.call('ZSCORE', prepare, id) then
      before = before + 1
    end
  end
end
return { write_cursor(page[1], server), before, tonumber(delivered or 0) }
