-- The functions by which a take lets due messages into their groups, and expired ones out.

-- Return returning_groups (lib/groups/enter_groups) and leaving_groups (lib/groups/leave_groups).
-- They are made when a take needs them: a script makes the functions of a library that it includes
-- at each run, and most takes of a slot with groups need none of these.
local function group_functions()
  --- @include "lib/groups/enter_groups"
  --- @include "lib/groups/leave_groups"
  return returning_groups, leaving_groups
end
