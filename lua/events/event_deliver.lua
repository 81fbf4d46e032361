--[[
event_deliver: give an event to messages that wait for it, so that they can be received at once.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   key                  of the event, 1 to 255 bytes
ARGV[5]   at                   time of the signal, epoch ms
ARGV[6]   data                 the number of a codec in one byte, and the body; or ''
ARGV[7..] n members (13 bytes each), 1 to 100
Returns   {how many messages got the event, how many of the members the call has looked at}. The
          other messages do not wait for the event, or have got it. The call looks at no further
          member after 2 MiB of events and steps. The caller gives these members to another call. In
          a slot without a topic, no message waits.
Cost      O(n log L + size of their steps), L = members of the slot.
Atomic    A message that waits for its time limit goes to the front of its priority, or before all
          due messages if it has none. In a slot with groups it becomes due, and goes to its group.
          In a slot in order the message is at its old place, and the slot no longer waits for it.
          Redis refuses the first write at maxmemory. A second run finds no message that waits.
]]
--- @keys slot store records bodies waits
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/event_bounds"
--- @include "lib/events/note_events"
--- @include "lib/events/waits"
--- @include "lib/events/with_event"
--- @include "lib/member"
--- @include "lib/records/place_in_record"
--- @include "lib/scores/score"
--- @include "lib/scores/timed_score"
--- @include "lib/wake/wake"
local IDS_FROM, IDS_MOST = 7, 100
local WRITE_BYTES = 2097152 -- of events and steps, so that a call is short
local now = clock(ARGV[1])
local key, data = ARGV[4], ARGV[6]
if #key < 1 or #key > KEY_MOST then
  fail('ARG', 'key')
end
local at = whole_number(ARGV[5], 0, NUMBER_MOST, 'at')
if #data > DATA_MOST then
  fail('ARG', 'data')
end
local n = #ARGV - IDS_FROM + 1
if n < 1 or n > IDS_MOST then
  fail('ARG', 'members')
end
local ids = { unpack(ARGV, IDS_FROM) }
for i = 1, n do
  if #ids[i] ~= MEMBER then
    fail('ARG', 'id')
  end
end
local created, waiting, blocked, front, grouped, holder, timed_priority =
  unpack(redis.call('HMGET', slot, 'created', 'waiting', 'blocked', 'front', 'groups', 'holder',
    'timed_priority'))
if not created then
  return { 0, n } -- the topic was deleted, with its messages
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', store)
redis.call('HLEN', records)
redis.call('ZCARD', waits)
front = tonumber(front or 0)

-- Let a message that waits for its time limit be received at once.
--- @inline
local function make_due(id)
  local record = redis.call('HGET', records, id)
  local place = place_in_record(record)
  local score
  if grouped or not place then
    score = next_timed_score(now, READ_RECORD)
  else
    if place >= PRIORITY_END then
      place = tonumber(timed_priority) or place
    end
    score = front_score(place, front)
    front = front - 1
    redis.call('HSET', slot, 'front', front)
  end
  redis.call('ZADD', store, score, id)
end

-- without_steps: how many of the delivered messages had no steps before
local names, delivered, without_steps, looked, bytes, seen = nil, 0, 0, 0, 0, {}
names = wait_names(ids)
local found = redis.call('HMGET', bodies, unpack(names))
while looked < n and bytes < WRITE_BYTES do
  looked = looked + 1
  local id, wait = ids[looked], found[looked]
  local awaited = awaited_key(wait)
  local score = awaited == key and not seen[id] and tonumber(redis.call('ZSCORE', store, id))
  if score then
    local entry = redis.call('HGET', bodies, id .. 's')
    local changed = with_event(entry or '', 'e', key, at, data)
    local ended = ended_wait(wait)
    redis.call('HSET', bodies, id .. 's', changed, names[looked], ended)
    redis.call('ZREM', waits, id)
    if score >= TIMED_MIN then
      make_due(id)
    elseif holder == id then
      redis.call('HDEL', slot, 'holder')
    end
    delivered, without_steps = delivered + 1, without_steps + (entry and 0 or 1)
    bytes, seen[id] = bytes + #changed, true
  end
end
note_events(delivered, without_steps)
if delivered > 0 and (is_awaited(waiting, now) or is_awaited(blocked, now)) then
  wake(ARGV[2], ARGV[3])
end
return { delivered, looked }
