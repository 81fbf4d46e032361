--[[
Which messages a take begins with, so that a flood of some cannot starve the others: due messages as a rule; one take in five
begins with the retries, and one with the priorities. A take in order always begins with the retries: those there failed before the
slot was in order, and are older than all that waits.
]]
local TURNS = 5 -- the take of this number, and of each multiple, begins with the retries
local PRIORITIES_TURN = 3 -- the one with this remainder begins with the priorities
local FEWEST_EVERY = 10 -- of these takes, one begins with the retries that have the fewest deliveries left
