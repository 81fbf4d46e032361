-- The follow-ups in the arguments of a call that settles deliveries, five arguments for each:
-- position of its delivery, `<topic>:<index>` of its target, its member, head, and the rest of its
-- record, as for send. Follow-ups have no merge key, and no large body apart from their record.
--- @include "lib/follow_ups/pending"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"
local EACH = 5 -- arguments of a follow-up

-- Stop the script if a follow-up cannot be stored, because later checks come after writes.
local function check_follow_up(id, head)
  if #id ~= MEMBER then
    fail('ARG', 'id')
  end
  if #head ~= HEAD then
    fail('ARG', 'head')
  end
  local first_byte, priority = split_head(head)
  local flags = first_byte % CODEC_STEP
  local has_priority = priority >= PRIORITY_MIN and priority < PRIORITY_END
  if flags % HEADERS >= MERGES then
    fail('ARG', 'flags') -- it merges, or has a large body
  end
  if not has_priority and (priority > 0 or flags % 2 == 0) then
    fail('ARG', 'priority')
  end
end

-- Return the position of the first argument of each follow-up, after checks of all of them.
--   from: position of the first argument of the first follow-up
--   n: number of deliveries
local function given_follow_ups(from, n)
  local count, positions = (#ARGV - from + 1) / EACH, {}
  if count < 0 or count > MOST or count % 1 > 0 then
    fail('ARG', 'follow-ups')
  end
  for at = from, #ARGV, EACH do
    whole_number(ARGV[at], 1, n, 'delivery')
    check_place(ARGV[at + 1])
    check_follow_up(ARGV[at + 2], ARGV[at + 3])
    positions[#positions + 1] = at
  end
  return positions
end

-- Return the positions of the follow-ups whose deliveries have a letter of their call.
--   letters: a letter for each delivery
local function of_deliveries(positions, letters, letter)
  local kept = {}
  for i = 1, #positions do
    local delivery = tonumber(ARGV[positions[i]])
    if string.sub(letters, delivery, delivery) == letter then
      kept[#kept + 1] = positions[i]
    end
  end
  return kept
end

-- Store follow-ups as pending entries. `positions`: of their first arguments, at least one. Return
-- the part of the reply about them, from add_pending.
local function add_given(positions, last_number, now, now_us)
  local entries = {}
  for i = 1, #positions do
    local at = positions[i]
    entries[2 * i - 1] = ARGV[at + 1]
    entries[2 * i] = ':' .. ARGV[at + 2] .. ARGV[at + 3] .. ARGV[at + 4]
  end
  local part = add_pending(entries, last_number, now, now_us)
  return part
end
