--[[
Pending entries: follow-ups of this slot that are not yet stored in their target. `pending` has a
member for each entry, all with score 0, so Redis sorts them as text:

  <topic>:<index>:<entry>

Topic and index name the target slot. lib/follow_ups/entry has the layout of the entry. Its number
grows with each entry of the slot, so the entries of a target are sorted by number. It is at least
the time in epoch us, so a slot that was created again, or that lost its last second, does not
repeat a number.

`targets` has each target with entries. Its score is the time, epoch ms, from which the next process
may send the entries of this target.
]]
--- @needs slot pending targets
--- @include "lib/check"
--- @include "lib/follow_ups/claim"
--- @include "lib/follow_ups/entry"
--- @include "lib/member"

-- Stop the script if this is not the name of a slot: `<topic>:<index>`.
local function check_place(place)
  if not string.find(place, '^[%w._-]+:%d+$') or #place > PLACE_MOST then
    fail('ARG', 'target')
  end
end

-- Return a number of an entry as text.
local function number_text(number)
  return string.format('%016.0f', number)
end

-- Store follow-ups as pending entries, at most 1000. Claim their targets, unless another process
-- sends to them.
--   given: for each target its name, and the messages: member, head, and rest of the record; of
--     copies of dead letters, what lib/follow_ups/entry names
--   last_number: the field `follow_ups` of the slot
--   mark: behind the numbers, ':' for follow-ups
--   hold_ms: how long the caller alone sends to these targets
-- Returns `<number> <claim> <targets>`, as ack_then does
local function add_pending(given, last_number, now, now_us, mark, hold_ms)
  local number = math.max(tonumber(last_number or 0) + 1, now_us)
  local claim_until = string.format('%.0f', now + hold_ms)
  local entries, e, texts = {}, 0, { number_text(number), claim_until }
  local ready_digits = {} -- the last two digits of a number as text
  for i = 1, #given do
    local target, messages, stem = given[i].target, given[i].messages, nil
    for m = 1, #messages do
      local last_two = number % 100 -- the other digits seldom change
      if m == 1 or last_two == 0 then
        stem = target .. ':' .. string.sub(number_text(number), 1, NUMBER_DIGITS - 2)
      end
      ready_digits[last_two] = ready_digits[last_two] or string.format('%02d', last_two)
      entries[e + 1] = '0'
      entries[e + 2] = stem .. ready_digits[last_two] .. mark .. messages[m]
      e, number = e + 2, number + 1
    end
    local score = redis.call('ZSCORE', targets, target)
    local is_claimed = score and tonumber(score) > now
    texts[#texts + 1] = target .. '=' .. (is_claimed and 'w' or score and 'o' or 'n')
    if not is_claimed then
      redis.call('ZADD', targets, claim_until, target)
    end
  end
  redis.call('ZADD', pending, unpack(entries))
  redis.call('HSET', slot, 'follow_ups', string.format('%.0f', number - 1))
  return table.concat(texts, ' ')
end

-- Return up to `limit` entries of a target, the oldest first, with at most READ_BYTES in all, but
-- at least one.
local function first_entries(target, limit)
  local entries, bytes = {}, 0
  local low, high = '[' .. target .. ':', '(' .. target .. ';' -- ; follows :
  for i = 0, limit - 1 do
    local entry = redis.call('ZRANGEBYLEX', pending, low, high, 'LIMIT', i, 1)[1]
    bytes = bytes + #(entry or '')
    if not entry or bytes > READ_BYTES and i > 0 then
      break
    end
    entries[i + 1] = entry
  end
  return entries
end
