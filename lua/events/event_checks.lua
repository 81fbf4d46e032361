--[[
event_checks: return messages that wait for events and are to be registered there (event_register).
Each message is registered soon after it was suspended. Later it is registered again from time to
time, because Redis may have lost the first registration, or the process that delivers the event may
have died.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                most messages to return, 0 to 500
ARGV[3..] at most 500 messages that the caller has registered, as they were returned
Returns   for each message: its member (13 bytes) and its wait (lib/events/waits) in one string
Cost      O(n log W), W = suspended messages
Atomic    No other process gets the returned messages for 5 s. A message that is registered comes
          again after 5 minutes, or after the time that it has waited, if that is longer. A message
          that has another wait than the registered one is not planned. Members that no longer wait
          are removed. Works while Redis is at maxmemory. A second run plans the registered messages
          again, and returns others.
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
local registered, registered_waits = {}, {}
for i = REGISTERED_FROM, #ARGV do
  if #ARGV[i] < MEMBER then
    fail('ARG', 'id')
  end
  registered[#registered + 1] = string.sub(ARGV[i], 1, MEMBER)
  registered_waits[#registered] = string.sub(ARGV[i], MEMBER + 1)
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', bodies)
redis.call('ZCARD', store)
allow_oom(waits)

-- Note when messages are to be registered next, and remove members that do not wait. Return the
-- waits by position, and nil for members that do not wait. `given_waits`: the waits that are
-- registered, or nil. A message may have got another wait since, which is not registered yet.
local function plan_next(ids, given_waits)
  local found = {}
  if #ids == 0 then
    return found
  end
  local names = wait_names(ids)
  local stored, times, others = redis.call('HMGET', bodies, unpack(names)), {}, {}
  for i = 1, #ids do
    local key = awaited_key(stored[i])
    if key and given_waits and given_waits[i] ~= stored[i] then
      found[i] = stored[i]
    elseif key then
      local waited = now - read48(stored[i], 2)
      found[i] = stored[i]
      times[#times + 1] = now + (given_waits and math.max(AGAIN_MS, waited) or REGISTER_MS)
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

plan_next(registered, registered_waits)
local ids, reply = {}, {}
if limit > 0 then
  ids = redis.call('ZRANGEBYSCORE', waits, '-inf', now, 'LIMIT', 0, limit)
end
local found = plan_next(ids)
for i = 1, #ids do
  local wait = found[i]
  if wait and redis.call('ZSCORE', store, ids[i]) then -- not in flight
    reply[#reply + 1] = ids[i] .. wait
  end
end
return reply
