-- Messages that come into their groups, for scripts that store them or find that they are due.
--- @include "lib/groups"

-- Returns two functions. The first one takes the id of a message, its priority and its record, or the record's head and the rest
-- from byte 9 on; call it for each message in turn. The second one writes all that follows, and returns whether messages went out.
-- `given`: from at + 1 on, as store_messages has them, or nil: their entries are read at once.
local function entering_groups(slot, store, setting, given, at, count)
  local groups = open_groups(slot, store, setting)
  restart_groups(groups)
  if given then
    local names = {}
    for i = 1, count do
      local head = given[at + count + 2 * i - 1]
      names[i] = type(head) == 'string' and group_of(head .. NO_NUMBER .. given[at + count + 2 * i]) or nil
    end
    load_groups(groups, names)
  end
  return function(id, priority, head, rest)
    local name, weight, share = group_of(rest and head .. NO_NUMBER .. rest or head)
    return_group(groups, name, weight, share, id, priority)
  end, function()
    return write_groups(groups)
  end
end

-- The same for dead letters that come in again, by their records.
local function redriving_groups(slot, store, setting)
  local groups = open_groups(slot, store, setting)
  restart_groups(groups)
  return function(record, id, priority)
    redrive_group(groups, record, id, priority)
  end, function()
    return write_groups(groups)
  end
end
