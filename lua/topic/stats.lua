--[[
stats: count the messages that a slot holds and has handled. Changes nothing.

ARGV[1]   now_us         ''    or a test's time
Returns   retries, priority, due, later, in flight, dead, trash, records, merge windows, ids remembered, ms for which the oldest
          message waits that may be taken (below), how many waiting messages a pause, the limit or their groups hold back, since
          when the slot is paused (epoch ms, or 0), the same for its sends, how many leases have expired that nobody gave back
          (a shared lease and a query count as one), then the counters accepted, merged, delivered, settled, returned (failed
          deliveries that went back at once), rolled back, dead-lettered, redriven, cancelled, expired, dropped, purged,
          dead letters dropped, then groups that are paused, groups that a dead letter holds, the server's time, epoch ms; last
          the counts of lateness_report, as text.
          A message waits since it failed last or was redriven, else since it was due, else since its producer made its id;
          of an id that a dedup key made that is not known. Looked at are the first due message, and the first ones
          of the 24 lowest priorities and numbers of retries: the others are taken before them.
          Of a group, those that are held behind others count as waiting with a priority
Cost      O(log L), up to 50 looks; with a limit for each key it reads up to 2000 records, 8 MiB at most
Atomic    Reads only: one moment of one slot.
]]
--- @keys slot store prepare records dead merge settled0 settled1 rates leases queries trash failures
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/settle/failures"
--- @include "lib/take/key_limits"
--- @include "lib/take/room_in"
--- @include "lib/member"
--- @include "lib/scores/score_ranges"
--- @include "lib/records/record_bytes"

-- How many of the first 1000 messages that wait the limits for each key hold back.
local function count_held(key_limit, chunk, now)
  local keys, count = open_keys(key_limit, chunk, now), 0
  local ids = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, string.format('(%.0f', now + 1), 'LIMIT', 0, 1000)
  local rest = redis.call('ZREVRANGEBYSCORE', store, '(' .. PRIORITY_END, 0, 'LIMIT', 0, 1000 - #ids)
  for i = 1, #rest do
    ids[#ids + 1] = rest[i]
  end
  read_keys(ids, chunk, key_limit.header, function(key)
    count = count + ((keys.full or key and not admit(keys, key)) and 1 or 0)
  end)
  return count
end

local PRIORITIES_MOST = 24 -- looked at for the oldest message: 16 of retries and 8 others
local HEADS_MOST = 3 -- of one: an id of a dedup key has no time

-- Since when a waiting message is due, epoch ms; nil where nothing tells.
local function due_since(member)
  local entry = redis.call('HGET', failures, member)
  if entry and not is_damaged(entry) then
    return read48(entry, 5)
  end
  local record = redis.call('HGET', records, member)
  if record and #record >= 14 and string.byte(record, 1) % 2 == 1 then
    return read48(record, 9)
  end
  local marks = #member == MEMBER and string.byte(member, 1) or 128
  if marks < 128 then
    return read48(member, 1) - (marks >= 64 and 64 * 2 ^ 40 or 0)
  end
end

-- When the oldest of the retries and priorities was due; `now` where there is none.
local function oldest_due(now)
  local oldest, from = now, 0
  for _ = 1, PRIORITIES_MOST do
    local lowest = redis.call('ZRANGEBYSCORE', store, from, '(' .. PRIORITY_END, 'WITHSCORES', 'LIMIT', 0, 1)
    if not lowest[1] then
      break
    end
    local priority = math.floor(tonumber(lowest[2]))
    from = priority + 1
    local heads = redis.call('ZREVRANGEBYSCORE', store, '(' .. from, priority, 'LIMIT', 0, HEADS_MOST)
    for i = 1, #heads do
      local since = due_since(heads[i])
      if since then
        oldest = math.min(oldest, since)
        break
      end
    end
  end
  return oldest
end

local now = clock(ARGV[1])
local past = string.format('%.0f', now + 1)
local past_ms = string.format('%.0f', now)
local created, paused, paused_send, limit, chunk, lateness, skipped = unpack(redis.call('HMGET', slot, 'created', 'paused',
  'paused_send', 'limit', 'chunk', 'lateness', 'skipped'))
if not created then
  fail('GONE', slot)
end
local first = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, '(' .. past, 'WITHSCORES', 'LIMIT', 0, 1)
local due = first[2] and math.floor(tonumber(first[2])) or now
if due < TIMED_MIN then -- it was handed back
  due = due_since(first[1]) or now
end
due = math.min(due, oldest_due(now))
local behind = redis.call('ZCOUNT', store, '-inf', '(0') -- others of their groups
local reply = {
  redis.call('ZCOUNT', store, 0, '(' .. PRIORITY_MIN),
  redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END) + behind,
  redis.call('ZCOUNT', store, PRIORITY_END, '(' .. past),
  redis.call('ZCOUNT', store, past, '+inf'),
  redis.call('ZCARD', prepare),
  redis.call('ZCARD', dead),
  redis.call('ZCARD', trash),
  redis.call('HLEN', records),
  redis.call('HLEN', merge),
  redis.call('SCARD', settled0) + redis.call('SCARD', settled1),
  now - due,
  behind,
  tonumber(paused or 0),
  tonumber(paused_send or 0),
  redis.call('ZCOUNT', prepare, '-inf', string.format('(%.0f', (math.floor(now / 1000) + 1) * 1000))
    + redis.call('ZCOUNT', leases, '-inf', past_ms)
    + redis.call('ZCOUNT', queries, '-inf', past_ms),
}
if paused or limit then
  local room = paused and 0 or room_in(limit, redis.call('HGET', slot, 'bucket'), reply[5], now)
  reply[12] = math.max(behind, reply[1] + reply[2] + reply[3] - room)
end
local key_limit = limit and key_limit_in(limit)
if key_limit and not paused then
  reply[12] = math.max(reply[12], behind + count_held(key_limit, tonumber(chunk), now))
end
local counters = redis.call('HMGET', slot, 'accepted', 'merged', 'delivered', 'settled', 'returned', 'rolled_back',
  'dead_lettered', 'redriven', 'cancelled', 'expired', 'dropped', 'purged', 'dead_dropped', 'groups_paused', 'groups_held')
for i = 1, #counters do
  reply[#reply + 1] = tonumber(counters[i] or 0)
end
reply[18] = reply[18] - tonumber(skipped or 0) -- numbers that no delivery has: see slot.lua
reply[#reply + 1] = now
reply[#reply + 1] = lateness or ''
return reply
