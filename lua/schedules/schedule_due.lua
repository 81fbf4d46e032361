--[[
schedule_due: read the schedules whose next time is due, and when the next one will be.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000 schedules
ARGV[3]   created              the topic's stamp as it was listed; another stamp is an error
ARGV[4]   generation           as it was listed
Returns   {now ms, ms until the next one after these is due, -1: there is none, then for each that is due: its name,
          definition, revision, next time, epoch ms}; the earliest first, at most about 1 MiB; {now ms, -2} in another
          generation: this entry of the list can be removed (schedule_set). After the clock was set back by more than a
          minute, also those that had been moved to their next time before: that time is to come, and the caller moves them
          to one that is next by this clock
Cost      O(log S + k), S = schedules of the topic, k = those returned; where the clock was set back, 1000 more are looked at, in
          turn, until it is where it was
Atomic    Only reads.
]]
--- @keys slot schedules schedule_times
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/schedules"
local BYTES = 1048576 -- of definitions in one reply; the first is returned, whatever its size
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 1, MOST, 'limit')
check_created(ARGV[3])
if generation_of() ~= ARGV[4] then
  return { now, -2 }
end
local names = redis.call('ZRANGEBYSCORE', schedule_times, '-inf', now, 'LIMIT', 0, limit)
local after_now = '(' .. string.format('%.0f', now)
local later = redis.call('ZRANGEBYSCORE', schedule_times, after_now, NUMBER_MOST, 'WITHSCORES', 'LIMIT', 0, 1)
if later[1] and is_ahead(redis.call('HGET', schedules, 'clock'), now) then
  local pages = math.ceil(redis.call('ZCOUNT', schedule_times, after_now, NUMBER_MOST) / 1000)
  local offset, fields = math.floor(now / 1000) % pages * 1000, {}
  local page = redis.call('ZRANGEBYSCORE', schedule_times, after_now, NUMBER_MOST, 'LIMIT', offset, 1000)
  for i = 1, #page do
    fields[i] = page[i] .. ':moved'
  end
  local moved = redis.call('HMGET', schedules, unpack(fields))
  for i = 1, #page do
    names[#names + 1] = #names < limit and is_ahead(moved[i], now) and page[i] or nil
  end
end
local reply, bytes = { now, later[2] and tonumber(later[2]) - now or -1 }, 0
for i = 1, #names do
  local s = read_schedule(names[i])
  if s[1] and s[3] and s[4] then
    bytes = bytes + #s[1]
    if i > 1 and bytes > BYTES then
      reply[2] = 0
      break
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = names[i], s[1], s[3], s[4]
  end
end
return reply
