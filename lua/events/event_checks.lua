--[[
event_checks: return messages that wait for events and are to be registered there (event_register).
Each message is registered soon after it was suspended. Later it is registered again from time to
time, because Redis may have lost the first registration, or the process that delivers the event may
have died.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                most messages to return, 0 to 500
ARGV[3..] at most 500 members (13 bytes each) that the caller has registered
Returns   for each message: its member, the key of its event, the end of its time limit (epoch ms)
Cost      O(n log W), W = suspended messages
Atomic    No other process gets the returned messages for 5 s. A message that is registered comes
          again after 5 minutes, or after the time that it has waited, if that is longer. Members
          that no longer wait are removed. Works while Redis is at maxmemory. A second run plans the
          registered messages again, and returns others.
]]
--- @keys slot store bodies waits
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/waits"
--- @include "lib/member"
--- @include "lib/records/record_bytes"
--- @include "lib/writes"
local REGISTER_MS, AGAIN_MS, CHECKS_MOST = 5000, 300000, 500
local REGISTERED_FROM = 3
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 0, CHECKS_MOST, 'limit')
if #ARGV - REGISTERED_FROM + 1 > CHECKS_MOST then
  fail('ARG', 'members')
end
local registered = { unpack(ARGV, REGISTERED_FROM) }
for i = 1, #registered do
  if #registered[i] ~= MEMBER then
    fail('ARG', 'id')
  end
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
redis.call('HLEN', bodies)
redis.call('ZCARD', store)
allow_oom(waits)

-- Note when messages are to be registered next, and remove members that do not wait. Return the
-- waits by position, and nil for members that do not wait.
local function plan_next(ids, is_registered)
  local found = {}
  if #ids == 0 then
    return found
  end
  local names
  names = wait_names(ids)
  local stored, times, others = redis.call('HMGET', bodies, unpack(names)), {}, {}
  for i = 1, #ids do
    local key
    key = awaited_key(stored[i])
    if key then
      local waited = now - read48(stored[i], 2)
      found[i] = stored[i]
      times[#times + 1] = now + (is_registered and math.max(AGAIN_MS, waited) or REGISTER_MS)
      times[#times + 1] = ids[i]
    else
      others[#others + 1] = ids[i]
    end
  end
  if #times > 0 then
    redis.call('ZADD', waits, unpack(times))
  end
  if #others > 0 then
    redis.call('ZREM', waits, unpack(others))
  end
  return found
end

plan_next(registered, true)
local ids, reply = {}, {}
if limit > 0 then
  ids = redis.call('ZRANGEBYSCORE', waits, '-inf', now, 'LIMIT', 0, limit)
end
local found = plan_next(ids, false)
for i = 1, #ids do
  local wait = found[i]
  if wait and redis.call('ZSCORE', store, ids[i]) then -- not in flight
    reply[#reply + 1], reply[#reply + 2] = ids[i], string.sub(wait, WAIT_HEAD + 1)
    local ends
    ends = limit_of(wait)
    reply[#reply + 1] = string.format('%.0f', ends)
  end
end
return reply
