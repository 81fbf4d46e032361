-- Let a single new message into its group, for the short form of send. For all other messages see
-- lib/groups/enter_groups.
--- @needs slot
--- @include "lib/groups/plain_entrance"
local MINUS = 45 -- first byte of the score of a held message

-- Return the score of the message, the entry of its group, and two new values of the slot: the
-- number of its last lane and of its last group. Return nil if the long form is needed. `setting`:
-- the field `groups` of the slot.
--- @inline
local function enter_alone(setting, name, id, priority)
  local text, vtime, lane, made =
    unpack(redis.call('HMGET', slot, '/' .. name, 'vtime', 'lane', 'groups_made'))
  local last = { vtime = tonumber(vtime or 0), lane = tonumber(lane or 0) }
  last.made = tonumber(made or 0)
  local most = tonumber(string.match(setting, '^%d+'))
  local step = score_step(priority)
  local score, entry = plain_entrance(text, most, last, id, priority, step)
  return score, entry, last.lane, last.made
end
