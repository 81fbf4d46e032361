--[[
resize_scan: count messages from before a resize, which newer messages in other slots must not
overtake. Reads a page of the slot's records and changes nothing. The field `upto` of the slot is
the acceptance number of the last message before the resize.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp since the resize; another stamp is an error
ARGV[3]   cursor               0 for the first page, or the cursor of the last answer. With a
          cursor of another server, the scan begins again.
ARGV[4]   limit                1 to 1000: approximate number of records in a page.
Returns   {cursor of the next page, 0 at the end; number of such messages in the page; number of the
          slot's newest delivery}. Dead letters and messages that are not due do not count, because
          no message waits for them. The retry of an ordered group counts, because its group waits
          for it. A message that waits for an event does not count until its event comes or its
          time limit ends. Each stopped group counts: its new messages go to another slot, in which
          the group is not stopped.
Cost      O(limit), at most about 16 MiB of records
Atomic    Reads only. The caller repeats a page until it finds no such message there, and then reads
          the next page. So no such message is left at the end: one HSCAN returns every record that
          exists during the whole pass. This is true for one server until it restarts.
          Another server has the records in another order, so a cursor names its server.
]]
--- @keys slot store prepare records bodies
--- @include "lib/check"
--- @include "lib/records/record"
--- @include "lib/clock"
--- @include "lib/events/waits"
--- @include "lib/groups/group_entries"
--- @include "lib/scan_cursor"
--- @include "lib/scores/score_ranges"
local now = clock(ARGV[1])
local created, chunk, last_accepted, delivered, groups_setting, groups_paused, groups_held, waited =
  unpack(redis.call('HMGET', slot, 'created', 'chunk', 'upto', 'delivered', 'groups',
    'groups_paused', 'groups_held', 'waited'))
if created ~= ARGV[2] then
  fail(created and 'ANEW' or 'GONE', slot)
end
local limit = math.min(whole_number(ARGV[4], 1, MOST, 'limit'), 4 * tonumber(chunk))
local cursor, server = read_cursor(ARGV[3])
-- A key of a wrong type stops the script here.
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
redis.call('HLEN', records)
redis.call('HLEN', bodies)
local newest_delivery = tonumber(delivered or 0)
if not last_accepted then
  return { '0', 0, newest_delivery } -- the resize has created this slot
end
local upto = tonumber(last_accepted)
local in_order = groups_setting and string.find(groups_setting, '^%d+:1')

-- Return whether a message that is not due is the retry of an ordered group.
local function is_awaited_retry(id, record)
  local name = in_order and group_of(record) or ''
  local entry = name ~= '' and redis.call('HGET', slot, '/' .. name)
  return entry and id == select(4, struct.unpack(GROUP_ENTRY, entry))
end

-- Return whether a record is from before the resize. It has the low 32 bits of its acceptance
-- number, and is from before the resize if that number is at most 2^31 below `upto`.
local function is_old(record)
  local age = #record >= FIXED and (upto - struct.unpack('>I4', record, 5)) % ACCEPTED_CYCLE
  return age and age < ACCEPTED_CYCLE / 2
end

-- Return whether a message waits for an event, and has time left.
local function is_suspended(id)
  local wait = redis.call('HGET', bodies, id .. 'w')
  local key = awaited_key(wait)
  local ends = 0
  if key then
    ends = limit_of(wait)
  end
  return ends > now
end

-- Return whether newer messages wait for a message.
local function must_go_first(id, record)
  local score = tonumber(redis.call('ZSCORE', store, id))
  if not score then
    return redis.call('ZSCORE', prepare, id)
  end
  if score >= TIMED_MIN and score >= now + 1 and not is_awaited_retry(id, record) then
    return false
  end
  return not (waited and is_suspended(id))
end

local page = redis.call('HSCAN', records, cursor, 'COUNT', limit)
local count = tonumber(groups_paused or 0) + tonumber(groups_held or 0)
for i = 1, #page[2], 2 do
  local id, record = page[2][i], page[2][i + 1]
  if is_old(record) and must_go_first(id, record) then
    count = count + 1
  end
end
return { write_cursor(page[1], server), count, newest_delivery }
