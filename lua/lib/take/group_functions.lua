-- The functions by which due messages enter their groups, and expired messages leave them.

-- Return returning_groups (lib/groups/enter_groups) and leaving_groups (lib/groups/leave_groups). A
-- script creates the functions of an included library at each run, and most takes of a slot with
-- groups need none of these functions.
local function group_functions()
  --- @include "lib/groups/enter_groups"
  --- @include "lib/groups/leave_groups"
  return returning_groups, leaving_groups
end
