-- Free groups that wait for a message which somebody deleted by hand.
--- @needs slot store prepare
--- @include "lib/groups/groups"

-- Compare an entry with the queues and correct it. Return whether it was wrong. `most`: largest
-- number of messages of the slot that can be out.
local function correct_entry(groups, entry, most)
  local member, is_wrong = entry.member, false
  if member and not redis.call('ZSCORE', store, member)
      and not redis.call('ZSCORE', prepare, member) then
    entry.member, entry.out, is_wrong = nil, 0, true
  elseif entry.out > most and not member then
    entry.out, is_wrong = most, true
  end
  for at = 1, #entry.front, MEMBER do
    if not redis.call('ZSCORE', store, string.sub(entry.front, at, at + MEMBER - 1)) then
      look_up_front(groups, entry)
      return true
    end
  end
  return is_wrong
end

-- Check some entries of the slot. If a message that was out is lost, let the group's next message
-- out.
local function free_groups(setting)
  local GROUPS_LOOKED = 100
  local cursor = redis.call('HGET', slot, 'groups_looked') or '0'
  local page = redis.call('HSCAN', slot, cursor, 'MATCH', '/*', 'COUNT', GROUPS_LOOKED)
  local groups, names = open_groups(setting), {}
  for i = 1, #page[2], 2 do
    names[#names + 1] = string.sub(page[2][i], 2)
  end
  if page[1] ~= cursor then
    redis.call('HSET', slot, 'groups_looked', page[1])
  end
  load_groups(groups, names)
  local most = redis.call('ZCARD', prepare) + redis.call('ZCOUNT', store, 0, BELOW_PRIORITY_END)
  for i = 1, #names do
    local entry = entry_in(groups, names[i])
    if correct_entry(groups, entry, most) then
      touch(groups, names[i])
      if not is_stopped(entry) then
        fill_group(groups, entry)
      end
    end
  end
  write_groups(groups)
end
