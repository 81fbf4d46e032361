--[[
group_pause: stop a group until group_resume. No more of its messages go out.

ARGV[1]   name                 of the group, which need not have messages.
Returns   1 paused, 0 was paused before, -1 the slot has no groups
Cost      O(log L), L = messages waiting in the slot
Atomic    In an ordered group, a message that is out but not in flight is held again, before all
          other messages of the group. Messages in flight stay in flight. In other groups, messages
          that are out can still be received. A second run changes nothing.
]]
--- @keys slot store
--- @include "lib/check"
--- @include "lib/groups/group_stops"
--- @include "lib/writes"
local created, setting = unpack(redis.call('HMGET', slot, 'created', 'groups'))
if not created then
  fail('GONE', slot)
end
if ARGV[1] == '' or #ARGV[1] > 200 then
  fail('ARG', 'name')
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', store)
if not setting then
  return -1
end
local groups = open_groups(setting)
allow_oom(store)
load_groups(groups, { ARGV[1] })
local entry = entry_in(groups, ARGV[1]) or new_entry(groups, ARGV[1], 1)
if not stop_group(groups, entry, PAUSED_GROUP) then
  return 0
end
write_groups(groups)
return 1
