-- Messages that come into their groups, for scripts that store them or find that they are due.
--- @include "lib/groups/groups"

-- Two functions for messages that are new. The first one takes the position, the id and the priority of one; the second one writes
-- all that follows, and returns whether messages went out. `rests`: what follows the acceptance number of each, at before + step,
-- before + 2 * step and so on; `head`: that of all of them, or nil: each stands before the rest.
local function entering_groups(setting, head, rests, before, count, step)
  local groups, names, weights, shares = open_groups(setting), {}, {}, {}
  local flags, byte = string.byte(head or '', 1) or 0, string.byte
  restart_groups(groups)
  for i = 1, count do
    local rest = rests[before + step * i]
    if not head then
      flags = byte(rests[before + step * i - 1], 1) or 0
    end
    local name
    name = plain_group(flags, rest, 1)
    if name then
      names[i], weights[i] = name, 1
    else
      names[i], weights[i], shares[i] = group_of_rest(flags, rest)
    end
  end
  load_groups(groups, names)
  return function(i, id, priority)
    enter_group(groups, names[i], weights[i], shares[i], id, priority)
  end, function()
    return write_groups(groups)
  end
end

-- Let new messages of one head and priority come in.
local function enter_all(setting, head, rests, before, members, priority)
  local enter, write_heads = entering_groups(setting, head, rests, before, #members, 1)
  for i = 1, #members do
    enter(i, members[i], priority)
  end
  write_heads()
end

-- The same for messages whose time has come, or, with `are_dead`, for dead letters that come in again: the first function takes the
-- record, the id and the priority of each.
local function returning_groups(setting, are_dead)
  local groups = open_groups(setting)
  restart_groups(groups)
  return function(record, id, priority)
    if are_dead then
      redrive_group(groups, record, id, priority)
    else
      local name, weight, share = group_of(record)
      load_groups(groups, { name })
      return_group(groups, name, weight, share, id, priority)
    end
  end, function()
    return write_groups(groups)
  end
end
