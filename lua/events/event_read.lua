--[[
event_read: read the steps of deliveries that have waited for an event, with the events that they
got.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] n members (13 bytes each), 1 to 1000; their n receipts.
Returns   for each delivery in order: its steps (lib/records/steps), or '' if it has never waited;
          nil without a valid receipt. The list ends after 4 MiB, and has at least one item. The
          caller reads the rest by another call.
Cost      O(n log L + size of the steps), L = leases of the slot.
Atomic    If a delivery still waits, no event came before its time limit: its steps get an item that
          says so, and the wait is over. Without a valid receipt, nothing is changed. Works while
          Redis is at maxmemory. A second run changes nothing.
]]
--- @keys slot prepare bodies waits
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/note_events"
--- @include "lib/events/waits"
--- @include "lib/events/with_event"
--- @include "lib/member"
--- @include "lib/writes"
local IDS_FROM = 2
local PAGE = 20 -- steps of deliveries that are read at once
local now = clock(ARGV[1])
local n = (#ARGV - IDS_FROM + 1) / 2
if n < 1 or n > MOST or n % 1 ~= 0 then
  fail('ARG', 'deliveries')
end
for i = IDS_FROM, IDS_FROM + n - 1 do
  if #ARGV[i] ~= MEMBER then
    fail('ARG', 'id')
  end
  if not tonumber(ARGV[i + n]) then
    fail('ARG', 'receipt')
  end
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local ids = { unpack(ARGV, IDS_FROM, IDS_FROM + n - 1) }
local names
names = wait_names(ids)
local found = redis.call('HMGET', bodies, unpack(names))
local scores = redis.call('ZMSCORE', prepare, unpack(ids))
-- A key of a wrong type stops the script here.
redis.call('ZCARD', waits)
allow_oom(prepare)
-- late: deliveries whose time limit ended; without_steps: how many of these had no steps before
local reply, bytes, late, fields, without_steps, seen = {}, 0, {}, {}, 0, {}

-- Return the steps of a delivery. If it still waits, they get an item that says that its time limit
-- has ended. `entry`: the steps that are stored, or false
local function steps_of(id, wait, entry)
  local key = awaited_key(wait)
  if not key or seen[id] then
    return seen[id] or entry or ''
  end
  local ended = ended_wait(wait)
  local changed = with_event(entry or '', 't', key, now, '')
  late[#late + 1], seen[id] = id, changed
  without_steps = without_steps + (entry and 0 or 1)
  for _, text in ipairs({ id .. 's', changed, id .. 'w', ended }) do
    fields[#fields + 1] = text
  end
  return changed
end

while #reply < n and bytes <= READ_BYTES do
  local entries, first = {}, #reply
  for i = 1, math.min(PAGE, n - first) do
    entries[i] = ids[first + i] .. 's'
  end
  entries = redis.call('HMGET', bodies, unpack(entries))
  for i = first + 1, first + #entries do
    local entry, receipt = false, tonumber(ARGV[IDS_FROM + n + i - 1])
    if scores[i] and tonumber(scores[i]) == receipt then
      entry = found[i] and steps_of(ids[i], found[i], entries[i - first]) or ''
    end
    reply[i], bytes = entry, bytes + #(entry or '')
    if bytes > READ_BYTES then
      break
    end
  end
end
if #late > 0 then
  redis.call('HSET', bodies, unpack(fields))
  redis.call('ZREM', waits, unpack(late))
  note_events(#late, without_steps)
end
return reply
