--[[
The follow-ups in the arguments of a call that settles deliveries. Without follow-ups there is none
of these arguments:

- the positions of the deliveries of all follow-ups, at most 1000, 2 bytes each
- for each target: its name, `<topic>:<index>`; number of its follow-ups; and for each of them one
  argument: its member, head, and the rest of its record, as for send

Follow-ups have no merge key, and no large body apart from their record.
]]
--- @include "lib/follow_ups/pending"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"

-- Stop the script if a follow-up cannot be stored, because later checks come after writes.
-- `head`: the head of its record
--- @inline
local function check_head(head)
  if #head ~= HEAD then
    fail('ARG', 'message')
  end
  local first_byte, priority = split_head(head)
  if first_byte % HEADERS >= MERGES then
    fail('ARG', 'flags') -- it merges, or has a large body
  end
  if (priority < PRIORITY_MIN or priority >= PRIORITY_END)
      and (priority > 0 or first_byte % 2 == 0) then
    fail('ARG', 'priority')
  end
end

-- Return the follow-ups by target, after checks of all of them: its name, the messages, and the
-- position of the delivery of each.
--   from: position of the first argument
--   n: number of deliveries
local function given_follow_ups(from, n)
  local numbers, at, given, seen, i = ARGV[from] or '', from + 1, {}, {}, 0
  local last_head = nil -- of the last follow-up; most follow-ups of a call have the same
  while at <= #ARGV do
    local target, messages, deliveries = ARGV[at], {}, {}
    local count = whole_number(ARGV[at + 1] or '', 1, MOST, 'follow-ups')
    check_place(target)
    if seen[target] or at + 1 + count > #ARGV or 2 * (i + count) > #numbers then
      fail('ARG', 'follow-ups')
    end
    seen[target] = true
    for m = 1, count do
      local high, low = string.byte(numbers, 2 * (i + m) - 1, 2 * (i + m))
      local delivery, message = high * 256 + low, ARGV[at + 1 + m]
      if delivery < 1 or delivery > n then
        fail('ARG', 'delivery')
      end
      local head = string.sub(message, MEMBER + 1, MEMBER + HEAD)
      if head ~= last_head then
        check_head(head)
        last_head = head
      end
      messages[m], deliveries[m] = message, delivery
    end
    given[#given + 1] = { target = target, messages = messages, deliveries = deliveries }
    i, at = i + count, at + 2 + count
  end
  if 2 * i ~= #numbers or i > MOST then
    fail('ARG', 'follow-ups')
  end
  return given
end

-- Return by target the follow-ups whose deliveries have a letter of their call.
--   letters: a letter for each delivery
local function of_deliveries(given, letters, letter)
  if not string.find(letters, '[^' .. letter .. ']') then
    return given
  end
  local kept, wanted = {}, string.byte(letter)
  for i = 1, #given do
    local messages, deliveries, m = {}, given[i].deliveries, 0
    for place = 1, #deliveries do
      if string.byte(letters, deliveries[place]) == wanted then
        m = m + 1
        messages[m] = given[i].messages[place]
      end
    end
    if m > 0 then
      kept[#kept + 1] = { target = given[i].target, messages = messages }
    end
  end
  return kept
end
