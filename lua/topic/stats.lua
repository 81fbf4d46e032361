--[[
stats: count the messages of a slot and read its counters. Changes nothing.

ARGV[1]   now_us         ''    or a test's time
Returns   A list of numbers, and a text at its end:
          1-4    retries, messages with a priority, due messages, later messages
          5-7    messages in flight, dead letters, letters in the trash
          8-10   records, merge windows, remembered ids
          11     how long the oldest message has waited that may be received, ms
          12     waiting messages that are held back by a pause, by the limit or by their groups
          13-14  since when receives are paused, and since when sends are (epoch ms, or 0)
          15     expired leases that were not given back; a shared lease and a query count as one
          16-28  counters: accepted, merged, delivered, settled, returned (failed deliveries that
                 went back at once), rolled back, dead-lettered, redriven, cancelled, expired,
                 dropped, purged, dead letters dropped
          29-30  paused groups, groups stopped by a dead letter
          31-32  pending follow-ups and ends of batch members, and how long the oldest of the
                 follow-ups for up to 24 targets has waited, ms
          33     results
          34     the server's time (epoch ms)
          35     messages that wait for an event (also counted in 1-4)
          36-37  bytes of the history, and how long ago its oldest part was acked, ms
          38     the counts of lateness_report, as text
          A message has waited since its last failure or redrive. Without one, it has waited since
          its due time, or since its producer made its id. An id that was derived from a dedup key
          has no time. The script compares the first due message and the first messages of the 24
          lowest priorities and numbers of retries, because others are received before them.
          Messages behind others of their group count as messages with a priority.
Cost      O(log L), up to 50 look-ups, L = messages of the slot. With a limit for each key, up to
          2000 records of 8 MiB at most.
Atomic    Reads only: one moment of one slot.
]]
--- @keys slot store prepare records dead merge settled0 settled1 rates leases queries trash failures pending targets keeping ackedparts
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/follow_ups/pending"
--- @include "lib/settle/failures"
--- @include "lib/take/key_limits"
--- @include "lib/take/room_in"
--- @include "lib/member"
--- @include "lib/scores/score_ranges"
--- @include "lib/records/record_bytes"
local PRIORITIES_MOST = 24 -- that are read for the oldest message: 16 of retries and 8 others
local TARGETS_MOST = 24 -- targets whose first pending follow-up is read
local HEADS_MOST = 3 -- messages of a priority that are read until one of them has a time

-- Return how many of the first 1000 messages that may be received are held back by limits for each
-- key.
local function count_held(key_limit, chunk, now)
  local keys, count = open_keys(key_limit, chunk, now), 0
  local after_now = string.format('(%.0f', now + 1)
  local ids = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, after_now, 'LIMIT', 0, MOST)
  local rest =
    redis.call('ZREVRANGEBYSCORE', store, '(' .. PRIORITY_END, 0, 'LIMIT', 0, MOST - #ids)
  for i = 1, #rest do
    ids[#ids + 1] = rest[i]
  end
  read_keys(ids, chunk, key_limit.header, function(key)
    count = count + ((keys.full or key and not admit(keys, key)) and 1 or 0)
  end)
  return count
end

-- Return since when a waiting message is due, epoch ms, or nil if that is unknown.
local function due_since(member)
  local entry = redis.call('HGET', failures, member)
  if entry and not is_damaged(entry) then
    return read48(entry, 5)
  end
  local record = redis.call('HGET', records, member)
  if record and #record >= FIXED + TIME_BYTES and string.byte(record, 1) % 2 == TIMED then
    return read48(record, FIXED + 1)
  end
  local first = #member == MEMBER and string.byte(member, 1) or DERIVED
  if first >= DERIVED then
    return nil
  end
  return read48(member, 1) - (first >= KEPT and KEPT * 2 ^ 40 or 0)
end

-- Return since when the first of these messages with a known time is due, else nil.
local function first_due_since(members)
  for i = 1, #members do
    local since = due_since(members[i])
    if since then
      return since
    end
  end
end

-- Return since when the oldest of the retries and prioritized messages is due, or `now`.
local function oldest_due(now)
  local oldest, from = now, 0
  for _ = 1, PRIORITIES_MOST do
    local lowest = redis.call('ZRANGEBYSCORE', store, from, '(' .. PRIORITY_END, 'WITHSCORES',
      'LIMIT', 0, 1)
    if not lowest[1] then
      break
    end
    local priority = math.floor(tonumber(lowest[2]))
    from = priority + 1
    local heads =
      redis.call('ZREVRANGEBYSCORE', store, '(' .. from, priority, 'LIMIT', 0, HEADS_MOST)
    oldest = math.min(oldest, first_due_since(heads) or now)
  end
  return oldest
end

-- Return how long the oldest pending follow-up has waited, ms; 0 if there is none.
local function pending_age(now_us)
  local names, oldest = redis.call('ZRANGE', targets, 0, TARGETS_MOST - 1), now_us
  for i = 1, #names do
    local entry, at = first_entries(names[i], 1)[1] or '', #names[i] + 2
    local number = tonumber(string.sub(entry, at, at + NUMBER_DIGITS - 1))
    oldest = math.min(oldest, number or oldest)
  end
  return math.floor((now_us - oldest) / 1000)
end

local now, now_us = clock(ARGV[1])
local now_text, past = string.format('%.0f', now), string.format('%.0f', now + 1)
local created, paused, paused_send, limit, chunk, lateness, skipped, suspended, acked =
  unpack(redis.call('HMGET', slot, 'created', 'paused', 'paused_send', 'limit', 'chunk',
    'lateness', 'skipped', 'suspended', 'acked'))
if not created then
  fail('GONE', slot)
end
local first =
  redis.call('ZRANGEBYSCORE', store, PRIORITY_END, '(' .. past, 'WITHSCORES', 'LIMIT', 0, 1)
local oldest = first[2] and math.floor(tonumber(first[2])) or now
if oldest < TIMED_MIN then -- the first due message was given back
  oldest = due_since(first[1]) or now
end
oldest = math.min(oldest, oldest_due(now))

local behind = redis.call('ZCOUNT', store, '-inf', '(0') -- others of their groups
local retries = redis.call('ZCOUNT', store, 0, '(' .. PRIORITY_MIN)
local prioritized = redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END) + behind
local due = redis.call('ZCOUNT', store, PRIORITY_END, '(' .. past)
local in_flight = redis.call('ZCARD', prepare)
local held_back = behind
if paused or limit then
  local bucket = redis.call('HGET', slot, 'bucket')
  local room = paused and 0 or room_in(limit, bucket, in_flight, now)
  held_back = math.max(behind, retries + prioritized + due - room)
end
local key_limit = limit and key_limit_in(limit)
if key_limit and not paused then
  held_back = math.max(held_back, behind + count_held(key_limit, tonumber(chunk), now))
end
local past_deadline = string.format('(%.0f', (math.floor(now / 1000) + 1) * 1000)
local reply = {
  retries,
  prioritized,
  due,
  redis.call('ZCOUNT', store, past, '+inf'),
  in_flight,
  redis.call('ZCARD', dead),
  redis.call('ZCARD', trash),
  redis.call('HLEN', records),
  redis.call('HLEN', merge),
  redis.call('SCARD', settled0) + redis.call('SCARD', settled1),
  now - oldest,
  held_back,
  tonumber(paused or 0),
  tonumber(paused_send or 0),
  redis.call('ZCOUNT', prepare, '-inf', past_deadline)
    + redis.call('ZCOUNT', leases, '-inf', now_text)
    + redis.call('ZCOUNT', queries, '-inf', now_text),
}
local counters = redis.call('HMGET', slot, 'accepted', 'merged', 'delivered', 'settled', 'returned',
  'rolled_back', 'dead_lettered', 'redriven', 'cancelled', 'expired', 'dropped', 'purged',
  'dead_dropped', 'groups_paused', 'groups_held')
local DELIVERED = 3 -- position of that counter
counters[DELIVERED] = tonumber(counters[DELIVERED] or 0) - tonumber(skipped or 0)
for i = 1, #counters do
  reply[#reply + 1] = tonumber(counters[i] or 0)
end
reply[#reply + 1] = redis.call('ZCARD', pending) + redis.call('ZCOUNT', keeping, '+inf', '+inf')
reply[#reply + 1] = pending_age(now_us)
reply[#reply + 1] = redis.call('ZCARD', keeping)
reply[#reply + 1] = now
reply[#reply + 1] = tonumber(suspended or 0)
local history_bytes = tonumber(string.match(acked or '', ' (%d+) ') or 0)
local first_part = history_bytes > 0 and (redis.call('LINDEX', ackedparts, 0) or acked)
local acked_ms = first_part and tonumber(string.match(first_part, '^%d+')) or now
reply[#reply + 1] = history_bytes
reply[#reply + 1] = math.max(0, now - acked_ms)
reply[#reply + 1] = lateness or ''
return reply
