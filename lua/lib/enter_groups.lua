-- Messages that come into their groups, for scripts that store them or find that they are due.
--- @include "lib/groups"

-- Two functions for messages that are new. The first one takes the position, the id and the priority of one; the second one writes
-- all that follows, and returns whether messages went out. `given`: from at + 1 on, as store_messages has them.
local function entering_groups(slot, store, setting, given, at, count)
  local groups, names, weights, shares = open_groups(slot, store, setting), {}, {}, {}
  restart_groups(groups)
  for i = 1, count do
    local head = given[at + count + 2 * i - 1]
    names[i], weights[i], shares[i] = group_of_rest(string.byte(head, 1) or 0, given[at + count + 2 * i])
  end
  load_groups(groups, names)
  return function(i, id, priority)
    enter_group(groups, names[i], weights[i], shares[i], id, priority)
  end, function()
    return write_groups(groups)
  end
end

-- The same for messages whose time has come, or, with `dead`, for dead letters that come in again: the first function takes the
-- record, the id and the priority of each.
local function returning_groups(slot, store, setting, dead)
  local groups = open_groups(slot, store, setting)
  restart_groups(groups)
  return function(record, id, priority)
    if dead then
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
