-- The statuses that a send replies instead of a letter for each message. Nothing was stored then.
local FULL = 'F' -- the capacity of the slot is reached
local SENDS_PAUSED = 'P' -- sends are paused
