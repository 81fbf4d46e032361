--[[
What a take begins with, so that a flood of some messages cannot starve others: usually due
messages; one take in five begins with retries, and one with priorities. A take in order always
begins with retries: these failed before the slot was in order, and are older than all that waits.
]]
local TURNS = 5 -- a take whose number is a multiple of this begins with retries
local PRIORITIES_TURN = 3 -- a take whose number modulo TURNS is this begins with priorities
local FEWEST_EVERY = 10 -- such a take begins with the retries that have the fewest deliveries left
