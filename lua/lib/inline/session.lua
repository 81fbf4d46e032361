--[[
session: split a call into session and number, for scripts that a single message passes: a function costs as much as a
command. It checks nothing; lib/replay does, on the long way.

Reads:     call: `<session> <number>`
Writes:    nothing
Declares:  space
           session, number
Returns for the caller: no
]]
local space = string.find(call, ' ', 2, true) or 2
local session, number = string.sub(call, 1, space - 1), string.sub(call, space + 1)
