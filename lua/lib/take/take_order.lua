--[[
The order in which a take looks at due messages, priorities and retries. A flood of some messages
must not starve others. So most takes begin with due messages, one take in five with retries, and
one in five with priorities. A take in order always begins with retries: they failed before the slot
was in order, and are older than all waiting messages.
]]
local TURNS = 5 -- a take begins with retries if its number is a multiple of this
local PRIORITIES_TURN = 3 -- a take begins with priorities if its number modulo TURNS is this
-- A take whose number is a multiple of this begins with the retries that have the fewest deliveries
-- left.
local FEWEST_EVERY = 10
