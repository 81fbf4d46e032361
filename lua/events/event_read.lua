--[[
event_read: read the steps of deliveries that have waited for an event, with the events that they
got.

ARGV[1]   now_us         ''    or a test's time
ARGV[2..] n members (13 bytes each), 1 to 1000, then their n receipts
Returns   for each delivery in order: its steps (lib/records/steps), or ''. The list ends after 4
          MiB, and has at least one item. The caller reads the rest by another call
Cost      O(n log L + size of the steps), L = leases of the slot
Atomic    If a delivery still waits, no event came before its time limit: its steps get an item that
          says so, and the wait is over. Without a valid receipt, nothing is changed, and '' is
          returned. Works while Redis is at maxmemory. A second run changes nothing.
]]
--- @keys slot prepare bodies waits
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/add_event"
--- @include "lib/events/waits"
--- @include "lib/member"
--- @include "lib/writes"
local IDS_FROM = 2
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
local names, reply, bytes = nil, {}, 0
names = wait_names(ids)
local found = redis.call('HMGET', bodies, unpack(names))
redis.call('ZCARD', waits)
allow_oom(prepare)
for i = 1, n do
  local id, wait, entry = ids[i], found[i], ''
  local score = wait and redis.call('ZSCORE', prepare, id)
  if score and tonumber(score) == tonumber(ARGV[IDS_FROM + n + i - 1]) then
    local key
    key = awaited_key(wait)
    if key then
      add_event(id, 't', key, now, '')
      end_wait(id, wait)
      redis.call('ZREM', waits, id)
    end
    entry = redis.call('HGET', bodies, id .. 's') or ''
  end
  reply[i], bytes = entry, bytes + #entry
  if bytes > READ_BYTES then
    break
  end
end
return reply
