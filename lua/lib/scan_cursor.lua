--[[
Cursors of passes over the records of a slot.

A cursor is 0 at first and at the end; else it is that of HSCAN, and the server's run id behind a point. Another server has the
records in another order, and so has this one after a restart: with a cursor from before that, the pass begins anew.
]]
--- @include "lib/check"

-- Where HSCAN goes on, '0' where the pass begins, and the run id of this server.
local function read_cursor(text)
  local cursor, of_server = string.match(text, '^(%d+)%.?(%x*)$')
  if not cursor or #cursor > 20 then
    fail('ARG', 'cursor')
  end
  local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  return of_server == server and cursor or '0', server
end

-- The cursor of the next page, from that which HSCAN returned.
local function write_cursor(cursor, server)
  return cursor == '0' and '0' or cursor .. '.' .. server
end
