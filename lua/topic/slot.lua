--[[
slot: give one slot the settings of its topic, which its scripts read. A slot that has them is left alone.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp
ARGV[3]   revision             how often the topic's settings have been changed
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6..] pairs of setting, value; `paused`, `paused_send`, `limit`, `timed_priority`, `resizes` and `delivered_from` are
          left out where there is none
Returns   1 set up or changed, 0 had these settings or later ones, -1 belongs to a topic with another stamp
Cost      O(settings)
Atomic    Settings of an older revision change nothing, so callers may come in any order. Messages are not touched: a
          slot that holds some keeps the smaller `chunk`, since they may be larger than the topic takes now. A slot of
          an older stamp without messages begins anew. A slot that exists is changed while Redis is at maxmemory, too.
          A slot whose stamp is at most `resizes` older is of the same topic with another number of slots: it gets the new
          stamp, and notes in `upto` its last message; its messages stay, and its consumers are woken.
          From then on it numbers its deliveries by the clock (lib/take/delivery_numbers), and the next one gets a larger number
          than `delivered_from` in any case, so that fences grow for a basis that comes from another slot.
          Another `max_retries` is kept with a plus (lib/leases/receipt), since clients may know the former one for a time.
          Another dedup window begins with the ids that the former one still remembers; those it had forgotten are removed.
          The end of a pause, and another limit, wake the consumers that sleep; another limit begins with full
          buckets. A second run changes nothing.
]]
--- @keys slot records rates settled0 settled1
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/take/delivery_numbers"
--- @include "lib/settle/settled"
--- @include "lib/wake/wake"
local now, now_us = clock(ARGV[1])
local revision = whole_number(ARGV[3], 0, EXACT_MOST, 'revision')
local created, own_revision, chunk, dedup_ms, settled_turn, was_paused, own_limit, accepted, delivered, skipped, max_retries =
  unpack(redis.call('HMGET', slot, 'created', 'revision', 'chunk', 'dedup_ms', 'settled_turn', 'paused', 'limit', 'accepted',
  'delivered', 'skipped', 'max_retries'))
local holds = redis.call('HLEN', records) > 0
redis.call('ZCARD', rates)
redis.call('SCARD', settled0)
redis.call('SCARD', settled1)
local given, paused, limit, resizes, delivered_from = { unpack(ARGV, 6) }, false, false, 0, 0
for i = 1, #given, 2 do
  if given[i] == 'resizes' then
    resizes = whole_number(given[i + 1], 1, MOST, 'resizes')
  elseif given[i] == 'delivered_from' then
    delivered_from = whole_number(given[i + 1], 1, NUMBER_MOST, 'delivered_from')
  end
end
delivered, skipped = tonumber(delivered or 0), tonumber(skipped or 0)
local older_by = created and (tonumber(ARGV[2]) or 0) - (tonumber(created) or 0)
local resized = older_by and older_by >= 1 and older_by <= resizes
if created and created ~= ARGV[2] and not resized then
  if holds or (tonumber(created) or 0) >= (tonumber(ARGV[2]) or 0) then
    return -1
  end
  redis.call('DEL', slot, rates)
  created, delivered, skipped = nil, 0, 0
elseif created then
  local forgotten
  if tonumber(own_revision or 0) >= revision and not resized then
    return 0
  end
  for i = 1, #ARGV - 5, 2 do
    local value = tonumber(given[i + 1])
    if given[i] == 'chunk' and holds then
      given[i + 1] = math.min(value, tonumber(chunk))
    elseif given[i] == 'max_retries' and max_retries ~= given[i + 1] then
      given[i + 1] = '+' .. given[i + 1]
    elseif given[i] == 'dedup_ms' and settled_turn and value > 0 and value ~= tonumber(dedup_ms) then
      forgotten = forgotten_sets(tonumber(dedup_ms), tonumber(settled_turn), now)
      -- Turns are counted in windows. The set that is filled now stays the one that is filled.
      local turn = math.floor(now / value)
      given[#given + 1] = 'settled_turn'
      given[#given + 1] = turn % 2 == tonumber(settled_turn) % 2 and turn or turn + 1
    elseif given[i] == 'paused' then
      paused = true
    elseif given[i] == 'limit' then
      limit = given[i + 1]
    end
  end
  -- A write that needs no memory: after it, Redis checks no more.
  redis.call('HDEL', slot, 'paused', 'paused_send', 'limit', 'timed_priority', 'held', limit ~= own_limit and 'bucket' or 'limit')
  if limit ~= own_limit then
    redis.call('UNLINK', rates)
  end
  if forgotten then
    redis.call('UNLINK', unpack(forgotten))
  end
end
if not created and not holds then
  given[#given + 1], given[#given + 2] = 'no_expiry', 1
end
if resized then
  given[#given + 1], given[#given + 2] = 'upto', accepted or 0
end
local steps = 0
if resizes > 0 then
  steps = steps_to(delivered, math.max(now_us, delivered_from, BY_CLOCK) + DELIVERY_CYCLE - 1)
end
if steps > 0 then
  given[#given + 1], given[#given + 2] = 'delivered', string.format('%.0f', delivered + steps)
  given[#given + 1], given[#given + 2] = 'skipped', string.format('%.0f', skipped + steps)
end
if revision > 0 then
  given[#given + 1], given[#given + 2] = 'revision', ARGV[3]
end
-- Fields are read by every script. In a hash that Redis keeps as a packed list each look-up goes through all of them; a
-- value this long makes it a table.
local note = 'This hash is kept as a table, not as a packed list, because of this long value.'
redis.call('HSET', slot, 'created', ARGV[2], 'note', note, unpack(given))
if resized or created == ARGV[2] and (was_paused and not paused or own_limit ~= limit) then
  wake(ARGV[4], ARGV[5])
end
return 1
