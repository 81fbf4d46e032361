--[[
Cursors of passes over the records of a slot.

A cursor is 0 at first and at the end. Otherwise it is the cursor of HSCAN, a point and the server's
run id. Another server has the records in another order, and a server has another order after a
restart. With a cursor of another run id, the pass begins again.
]]
--- @include "lib/check"

-- Return the cursor for HSCAN, which is '0' if the pass begins again, and this server's run id.
local function read_cursor(text)
  local cursor, of_server = string.match(text, '^(%d+)%.?(%x*)$')
  if not cursor or #cursor > 20 then
    fail('ARG', 'cursor')
  end
  local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  return of_server == server and cursor or '0', server
end

-- Return the cursor of the next page. `cursor`: as HSCAN returned it.
local function write_cursor(cursor, server)
  return cursor == '0' and '0' or cursor .. '.' .. server
end
