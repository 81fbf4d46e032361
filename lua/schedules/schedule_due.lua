--[[
schedule_due: read the schedules whose next time is due, and when the next schedule is due.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000 schedules
ARGV[3]   created              the topic's stamp as it was listed. Another stamp is an error.
ARGV[4]   generation           as it was listed
Returns   {now ms, ms until the next schedule is due, and for each schedule that is due: name,
          definition, revision, next time in epoch ms}, the earliest first, about 1 MiB at most. The
          second value is -1 if no other schedule has a next time. In another generation it is -2:
          the caller can remove this entry of the list (schedule_set).
          After the clock was set back by more than a minute, the reply also has schedules that had
          moved to a later time before. The caller gives them the next time by the clock of now.
Cost      O(log S + k), S = schedules of the topic, k = schedules returned. After the clock was set
          back, each call also reads 1000 other schedules, until the clock has passed its former
          time.
Atomic    Only reads.
]]
--- @keys slot schedules schedule_times
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/schedules"
local BYTES = 1048576 -- of definitions in one reply, which has one definition of any size
local LOOKED = 1000 -- schedules that a call reads after the clock was set back
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 1, MOST, 'limit')
check_created(ARGV[3])
if generation_of() ~= ARGV[4] then
  return { now, -2 }
end
local after_now = '(' .. string.format('%.0f', now)

-- Add schedules that were moved to their next time before the clock was set back.
local function add_moved_ahead(names)
  local later = redis.call('ZCOUNT', schedule_times, after_now, NUMBER_MOST)
  local pages = math.ceil(later / LOOKED)
  local offset = math.floor(now / 1000) % pages * LOOKED
  local page = redis.call('ZRANGEBYSCORE', schedule_times, after_now, NUMBER_MOST, 'LIMIT', offset,
    LOOKED)
  local fields = {}
  for i = 1, #page do
    fields[i] = page[i] .. ':moved'
  end
  local moved = redis.call('HMGET', schedules, unpack(fields))
  for i = 1, #page do
    if #names < limit and is_ahead(moved[i], now) then
      names[#names + 1] = page[i]
    end
  end
end

local names = redis.call('ZRANGEBYSCORE', schedule_times, '-inf', now, 'LIMIT', 0, limit)
local later = redis.call('ZRANGEBYSCORE', schedule_times, after_now, NUMBER_MOST, 'WITHSCORES',
  'LIMIT', 0, 1)
if later[1] and is_ahead(redis.call('HGET', schedules, 'clock'), now) then
  add_moved_ahead(names)
end
local reply, bytes = { now, later[2] and tonumber(later[2]) - now or -1 }, 0
for i = 1, #names do
  local definition, _, revision, next_ms = unpack(read_schedule(names[i]))
  if definition and revision and next_ms then
    bytes = bytes + #definition
    if i > 1 and bytes > BYTES then
      reply[2] = 0
      break
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = names[i], definition, revision, next_ms
  end
end
return reply
