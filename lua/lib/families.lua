-- Where the families of StoreQueue scores begin; lib/score.lua draws them. HANDED_BACK is the middle of its family.
local PRIORITY_MIN, PRIORITY_END, TIMED_MIN = 17, 1048576, 1000000000000
local HANDED_BACK = 500000000000
