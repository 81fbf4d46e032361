-- Let new messages into plain groups, for scripts that store many messages.
--- @needs slot store
--- @include "lib/add"
--- @include "lib/groups/plain_entrance"
local SLOT_FIELDS = 3 -- fields that are read before the entries of groups

-- Let new messages with the same head and priority into their groups, and write all changes. Return
-- the positions of the messages for which nothing was done, because their groups are not plain.
-- Return nil instead of all positions, if a message is not plain, or follows one of its own group.
-- For the parameters see open_new (lib/groups/enter_groups).
local function enter_plain_groups(setting, head, rests, before, members, priority)
  local string, struct, math = string, struct, math -- local variables are faster than global ones
  local names, fields, first_byte = {}, { 'vtime', 'lane', 'groups_made' }, string.byte(head, 1)
  for i = 1, #members do
    local name = plain_group(first_byte, rests[before + i], 1)
    if not name or name == names[i - 1] then
      return nil -- lib/groups/enter_groups holds a run of messages of one group together
    end
    names[i], fields[SLOT_FIELDS + i] = name, '/' .. name
  end
  local texts = redis.call('HMGET', slot, unpack(fields))
  local old_lane, old_made = tonumber(texts[2] or 0), tonumber(texts[3] or 0)
  local last = { vtime = tonumber(texts[1] or 0), lane = old_lane, made = old_made }
  if last.vtime >= GROUPS_RESTART then
    return nil -- lib/groups/groups restarts the virtual time
  end
  local most = tonumber(string.match(setting, '^%d+'))
  local step = score_step(priority)
  local entries, others, add, set, count = {}, {}, {}, {}, 0 -- entries: by name, after this call
  for i = 1, #members do
    local name, id = names[i], members[i]
    local text, score, entry = entries[name], nil, nil
    if text == nil then
      text = texts[SLOT_FIELDS + i]
    end
    if text ~= GROUP_ENDED then
      score, entry = plain_entrance(text, most, last, id, priority, step)
    end
    if score then
      add[count + 1], add[count + 2], entries[name] = score, id, entry
      set[count + 1], set[count + 2], count = fields[SLOT_FIELDS + i], entry, count + 2
    else
      others[#others + 1], entries[name] = i, GROUP_ENDED -- so later messages do not overtake it
    end
  end
  if count > 0 then
    add_members(store, add, count / 2)
    if last.lane ~= old_lane then
      set[count + 1], set[count + 2], count = 'lane', last.lane, count + 2
    end
    if last.made ~= old_made then
      set[count + 1], set[count + 2] = 'groups_made', last.made
    end
    redis.call('HSET', slot, unpack(set))
  end
  return others
end
