-- The functions by which new messages enter their groups, for a script with several branches that
-- may need them.
--- @include "lib/records/record_bytes"
--- @include "lib/scores/score"

-- Return enter_all and entering_groups (lib/groups/enter_groups). A script creates the functions of
-- an included library at each run, and a slot without groups needs none of these functions.
local function group_entrances()
  --- @include "lib/groups/enter_groups"
  return enter_all, entering_groups
end
