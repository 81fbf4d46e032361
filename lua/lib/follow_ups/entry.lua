--[[
The layout of a pending entry without the name of its target:

  <number, 16 digits>:<member, 13 bytes><head, 4 bytes><rest of the record>

The entry of a copy of a dead letter (lib/follow_ups/copy_dead):

  <number, 16 digits>!<letter of the reason><member, 13 bytes><record>
]]
local NUMBER_DIGITS = 16 -- of the number of an entry
local ENTRY_MEMBER = 18 -- first byte of the member
local ENTRY_RECORD = 31 -- first byte of the head
