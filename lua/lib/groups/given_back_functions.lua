-- The functions by which deliveries that end or are given back leave their groups.

-- Return leaving_groups (lib/groups/leave_groups) and hold_given_back (lib/groups/group_stops). A
-- script creates the functions of an included library at each run, and a slot without groups needs
-- none of these functions.
local function given_back_functions()
  --- @include "lib/groups/group_stops"
  --- @include "lib/groups/leave_groups"
  return leaving_groups, hold_given_back
end
