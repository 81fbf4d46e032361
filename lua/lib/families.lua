-- Where the families of StoreQueue scores begin; lib/score.lua draws them.
local PRIORITY_MIN, PRIORITY_END, TIMED_MIN = 17, 1048576, 1000000000000
