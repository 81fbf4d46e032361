--[[
group_pause: let no more messages of a group out, until group_resume.

ARGV[1]   name                 of the group; it need not have messages
Returns   1 paused, 0 was paused already, -1 the slot has no groups
Cost      O(log L), L = messages waiting in the slot
Atomic    If one message of a group is out at a time, and it waits to be taken, it is held again,
          before all other messages. Messages in flight stay in flight. If a group has several
          messages out, they can still be taken. A second run changes nothing.
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
