-- Stop and start groups: a group may be paused, or stopped by a dead letter.
--- @needs slot store records
--- @include "lib/groups/groups"

-- Return whether an entry has a flag.
local function has_flag(entry, flag)
  return entry.flags % (2 * flag) >= flag
end

-- Return the field of the slot that counts the groups with a flag.
local function counter_of(flag)
  return flag == PAUSED_GROUP and 'groups_paused' or 'groups_held'
end

-- Hold the message of a group that is out, if it is the only one and is not in flight.
local function hold_waiting(groups, entry)
  local member = entry.member
  local score = member and tonumber(redis.call('ZSCORE', store, member) or 0) or 0
  if score > 0 and score < PRIORITY_END then
    hold_back(groups, entry, member, entry.priority, true)
    entry.member, entry.out = nil, 0
  end
end

-- Hold the messages of stopped groups among messages that were given back.
local function hold_given_back(ids)
  local groups, names = open_groups(redis.call('HGET', slot, 'groups')), {}
  for i = 1, #ids do
    names[i] = group_of(redis.call('HGET', records, ids[i]))
  end
  load_groups(groups, names)
  for i = 1, #ids do
    local entry = entry_in(groups, names[i])
    if entry and entry.member == ids[i] and is_stopped(entry) then
      hold_waiting(groups, entry)
    end
  end
  write_groups(groups)
end

-- Set a flag that stops a group. In an ordered group, a message that is
-- out but not in flight is held again. Return false if the group had the flag.
local function stop_group(groups, entry, flag)
  if has_flag(entry, flag) then
    return false
  end
  entry.flags = entry.flags + flag
  touch(groups, entry.name)
  redis.call('HINCRBY', slot, counter_of(flag), 1)
  hold_waiting(groups, entry)
  return true
end

-- Remove a flag of a group, and let the next messages out if no other flag stops it. Return false
-- if the group did not have the flag.
local function start_group(groups, entry, flag)
  if not has_flag(entry, flag) then
    return false
  end
  entry.flags = entry.flags - flag
  touch(groups, entry.name)
  redis.call('HINCRBY', slot, counter_of(flag), -1)
  if flag == STOPPED_BY_DEAD then
    redis.call('HDEL', slot, '!' .. entry.name)
  end
  if not is_stopped(entry) then
    fill_group(groups, entry)
  end
  return true
end
