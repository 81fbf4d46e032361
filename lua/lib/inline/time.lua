--[[
time: the time, for scripts that do without lib/clock: a single message passes them, and a function costs as much as a
command.

Reads:     ARGV: the first is a test's time, or empty
Writes:    nothing
Declares:  at, seconds: epoch s as 10 digits
           now_ms: epoch ms
           now_us: epoch us
Returns for the caller: no
]]
local at = redis.call('TIME')
if ARGV[1] ~= '' then -- a test's time
  at = { string.format('%010d', tonumber(ARGV[1]) / 1000000), tonumber(ARGV[1]) % 1000000 }
end
local seconds, now_us = at[1], at[1] * 1000000 + at[2]
local now_ms = (now_us - now_us % 1000) / 1000
