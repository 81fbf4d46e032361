--[[
event_checks: return messages that wait for events and are to be registered there (event_register).
Each message is registered soon after it was suspended. Later it is registered again from time to
time, because Redis may have lost the first registration, or the process that delivers the event may
have died.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                most messages to return, 0 to 500
ARGV[3..] members that the caller has registered
Returns   for each message: its member, the key of its event, the end of its time limit (epoch ms)
Cost      O(n log W), W = suspended messages
Atomic    No other process gets the returned messages for 5 s. A message that is registered comes
          again after 5 minutes, later after the time that it has waited. Members that no longer
          wait are removed. Works while Redis is at maxmemory.
]]
--- @keys slot store bodies waits
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/waits"
--- @include "lib/records/record_bytes"
--- @include "lib/writes"
local REGISTER_MS, AGAIN_MS, CHECKS_MOST = 5000, 300000, 500
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 0, CHECKS_MOST, 'limit')
local registered = { unpack(ARGV, 3) }
if #registered > CHECKS_MOST then
  fail('ARG', 'registered')
end
local created, ordered = unpack(redis.call('HMGET', slot, 'created', 'ordered'))
if not created then
  fail('GONE', slot)
end
redis.call('HLEN', bodies)
redis.call('ZCARD', store)
allow_oom(waits)

-- Note when messages are to be registered next. Returns the waits by position; false: not waiting
local function plan_next(ids, wait_ms)
  if #ids == 0 then
    return {}
  end
  local names
  names = wait_names(ids)
  local found = redis.call('HMGET', bodies, unpack(names))
  for i = 1, #ids do
    local key
    key = awaited_key(found[i])
    if not key then
      found[i] = false
      redis.call('ZREM', waits, ids[i])
    else
      local waited = wait_ms == AGAIN_MS and now - read48(found[i], 2) or 0
      redis.call('ZADD', waits, now + math.max(wait_ms, waited), ids[i])
    end
  end
  return found
end

plan_next(registered, AGAIN_MS)
local ids, reply = {}, {}
if limit > 0 then
  ids = redis.call('ZRANGEBYSCORE', waits, '-inf', now, 'LIMIT', 0, limit)
end
local found = plan_next(ids, REGISTER_MS)
for i = 1, #ids do
  local score = found[i] and redis.call('ZSCORE', store, ids[i])
  if score then
    --- @include "lib/scores/score_ranges"
    local ends = tonumber(score) >= TIMED_MIN and math.floor(tonumber(score))
      or tonumber(ordered or now)
    reply[#reply + 1], reply[#reply + 2] = ids[i], string.sub(found[i], WAIT_HEAD + 1)
    reply[#reply + 1] = string.format('%.0f', math.max(now, ends))
  end
end
return reply
