--[[
slot: store the settings of a topic in one of its slots, where the scripts read them. A slot that
has them already is not changed.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   created              the topic's stamp
ARGV[3]   revision             how often the topic's settings have been changed
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6..] pairs of setting, value. The topic need not have `paused`, `paused_send`, `limit`,
          `timed_priority`, `resizes`, `delivered_from`, `dead_to` and `history`.
Returns   1 created or changed, 0 had these settings or later settings, -1 belongs to a topic with
          another stamp
Cost      O(settings)
Atomic    Settings of an older revision change nothing, so calls may come in any order. No message
          changes. A slot with messages keeps the smaller `chunk`, because its messages may be
          larger than the topic accepts now. A slot with an older stamp and without messages is
          created again. An existing slot is changed also while Redis is at maxmemory.
          A slot whose stamp is at most `resizes` older is of the same topic with another number of
          slots. It gets the new stamp and keeps its messages. `upto` gets its last acceptance
          number. Its consumers are woken.
          After a resize the slot numbers its deliveries by the clock (lib/take/delivery_numbers).
          The next number is larger than `delivered_from`. So fences also grow for messages of a
          basis that went to another slot before.
          A changed `max_retries` is stored with a plus (lib/leases/receipt), because clients may
          use the former value for a time.
          A new dedup window begins with the ids that the former window still remembers. Ids that it
          had forgotten are removed.
          The end of a pause and a changed limit wake the consumers that sleep. A changed limit
          begins with full buckets. A second run changes nothing.
]]
--- @keys slot records rates settled0 settled1 acked ackedparts
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/take/delivery_numbers"
--- @include "lib/send/dedup_window"
--- @include "lib/wake/wake"
local now, now_us = clock(ARGV[1])
local revision = whole_number(ARGV[3], 0, EXACT_MOST, 'revision')
local created, own_revision, chunk, dedup_ms, settled_turn, max_retries, was_paused, own_limit,
  accepted, delivered, skipped = unpack(redis.call('HMGET', slot, 'created', 'revision', 'chunk',
  'dedup_ms', 'settled_turn', 'max_retries', 'paused', 'limit', 'accepted', 'delivered', 'skipped'))
local has_messages = redis.call('HLEN', records) > 0
-- A key of a wrong type stops the script here.
redis.call('ZCARD', rates)
redis.call('SCARD', settled0)
redis.call('SCARD', settled1)
redis.call('XLEN', acked)
-- A key of a wrong type stops the script here.
redis.call('LLEN', ackedparts)
delivered, skipped = tonumber(delivered or 0), tonumber(skipped or 0)
local settings = { unpack(ARGV, 6) } -- settings and values in turn, as they will be stored

-- Return the position of the value of a setting, or nil if the topic does not have the setting.
local function position_of(setting)
  for i = 1, #settings, 2 do
    if settings[i] == setting then
      return i + 1
    end
  end
end

-- Return the value of a setting, or false.
local function setting_of(setting)
  return settings[position_of(setting) or 0] or false
end

-- Return a setting as a whole number; 0 if the topic does not have the setting.
local function whole_setting(setting, most)
  local value = setting_of(setting)
  return value and whole_number(value, 1, most, setting) or 0
end

-- Store another field with the settings.
local function add_field(field, value)
  settings[#settings + 1], settings[#settings + 2] = field, value
end

-- Adapt a new dedup window to the settled ids of the slot. Return the sets that the former window
-- has forgotten, or nil.
local function change_window(window)
  if not settled_turn or window <= 0 or window == tonumber(dedup_ms) then
    return nil
  end
  -- A turn is the number of a window. The set that is being filled must stay the same.
  local last_turn, turn = tonumber(settled_turn), math.floor(now / window)
  if turn % 2 ~= last_turn % 2 then
    turn = turn + 1
  end
  add_field('settled_turn', turn)
  return forgotten_sets(tonumber(dedup_ms), last_turn, now)
end

-- Adapt the settings to an existing slot: see "Atomic". Return the same as change_window.
local function adapt_settings()
  local chunk_at, retries_at = position_of('chunk'), position_of('max_retries')
  if chunk_at and has_messages then
    settings[chunk_at] = math.min(tonumber(settings[chunk_at]), tonumber(chunk))
  end
  if retries_at and settings[retries_at] ~= max_retries then
    settings[retries_at] = '+' .. settings[retries_at]
  end
  return change_window(tonumber(setting_of('dedup_ms') or 0))
end

local resizes = whole_setting('resizes', MOST)
local delivered_from = whole_setting('delivered_from', NUMBER_MOST)
local paused, limit = setting_of('paused'), setting_of('limit')
local stamp, own_stamp = tonumber(ARGV[2]) or 0, tonumber(created or 0) or 0
local age = stamp - own_stamp
local is_resized = created and age >= 1 and age <= resizes
local is_of_another = created and created ~= ARGV[2] and not is_resized
local is_known = created and not is_of_another
if is_of_another and (has_messages or own_stamp >= stamp) then
  return -1
end
if is_known and not is_resized and tonumber(own_revision or 0) >= revision then
  return 0
end
if is_of_another then
  redis.call('DEL', slot, rates)
  redis.call('UNLINK', acked, ackedparts)
  delivered, skipped = 0, 0
end
if is_known then
  local forgotten = adapt_settings()
  -- This write needs no memory: after it, Redis does not check memory.
  redis.call('HDEL', slot, 'paused', 'paused_send', 'limit', 'timed_priority', 'held',
    'dead_to', 'history', limit ~= own_limit and 'bucket' or 'limit')
  if limit ~= own_limit then
    redis.call('UNLINK', rates)
  end
  if forgotten then
    redis.call('UNLINK', unpack(forgotten))
  end
end
if not is_known and not has_messages then
  add_field('no_expiry', 1)
end
if is_resized then
  add_field('upto', accepted or 0)
end
local steps = 0
if resizes > 0 then
  local least = math.max(now_us, delivered_from, BY_CLOCK)
  steps = steps_to(delivered, least + DELIVERY_CYCLE - 1)
end
if steps > 0 then
  add_field('delivered', string.format('%.0f', delivered + steps))
  add_field('skipped', string.format('%.0f', skipped + steps))
end
if revision > 0 then
  add_field('revision', ARGV[3])
end
-- Every script reads fields of this hash. In a packed list, each look-up reads all fields one by
-- one. A value of this length makes Redis use a table.
local note = 'This hash is kept as a table, not as a packed list, because of this long value.'
redis.call('HSET', slot, 'created', ARGV[2], 'note', note, unpack(settings))
local has_more_room = was_paused and not paused or own_limit ~= limit
if is_resized or created == ARGV[2] and has_more_room then
  wake(ARGV[4], ARGV[5])
end
return 1
