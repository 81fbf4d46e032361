--[[
group_resume: end the pause of a group, or let a group continue that a dead letter holds.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   name                 of the group
ARGV[5]   what                 paused: end the pause; dead: end the hold of the dead letter
Returns   1 the group continues if nothing else stops it; 0 it was not stopped by this
Cost      O(k log L), k = messages that go out, L = messages waiting in the slot
Atomic    The next messages go out, and sleeping consumers are woken. A second run changes nothing.
]]
--- @keys slot store
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/groups/group_stops"
--- @include "lib/wake/wake"
local now = clock(ARGV[1])
local created, setting = unpack(redis.call('HMGET', slot, 'created', 'groups'))
if not created then
  fail('GONE', slot)
end
if ARGV[5] ~= 'paused' and ARGV[5] ~= 'dead' then
  fail('ARG', 'what')
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', store)
if not setting then
  return 0
end
local groups = open_groups(setting)
load_groups(groups, { ARGV[4] })
local entry = entry_in(groups, ARGV[4])
allow_oom(store)
local flag = ARGV[5] == 'dead' and STOPPED_BY_DEAD or PAUSED_GROUP
if not entry or not start_group(groups, entry, flag) then
  return 0
end
if write_groups(groups) then
  wake_sleepers(now, ARGV[2], ARGV[3])
end
return 1
