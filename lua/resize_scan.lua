--[[
resize_scan: does a page of a slot's records have messages from before the topic was resized, which newer ones in other
slots must not overtake? Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot; `upto`: the last message from before the resize
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> receipt
KEYS[4]   records        hash  member -> record
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
--- @include "lib/check"
--- @include "lib/record"
--- @include "lib/clock"
--- @include "lib/group_entries"
--- @include "lib/scan_cursor"
--- @include "lib/score_ranges"
local store, prepare = KEYS[2], KEYS[3]
local now = clock(ARGV[1])
local s = redis.call('HMGET', KEYS[1], 'created', 'chunk', 'upto', 'delivered', 'groups', 'groups_paused', 'groups_held')
local in_order = s[5] and string.find(s[5], '^%d+:1')

-- Whether a message that waits for its time is the retry of a group in order, which waits for it.
local function is_awaited_retry(record, id)
  local name = in_order and group_of(record) or ''
  local entry, member = name ~= '' and redis.call('HGET', KEYS[1], '/' .. name), nil
  if entry then
    member = select(4, struct.unpack(GROUP_ENTRY, entry))
  end
  return member == id
end

if s[1] ~= ARGV[2] then
  fail(s[1] and 'ANEW' or 'GONE', KEYS[1])
end
local limit = math.min(whole_number(ARGV[4], 1, MOST, 'limit'), 4 * tonumber(s[2]))
local cursor, server = read_cursor(ARGV[3])
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
redis.call('HLEN', KEYS[4])
if not s[3] then
  return { '0', 0, tonumber(s[4] or 0) } -- a slot that this resize has created
end
local upto = tonumber(s[3])
local page, before = redis.call('HSCAN', KEYS[4], cursor, 'COUNT', limit), tonumber(s[6] or 0) + tonumber(s[7] or 0)
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
return { write_cursor(page[1], server), before, tonumber(s[4] or 0) }
