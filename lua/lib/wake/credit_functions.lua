-- The functions of credits, for a script of which several branches seldom need them.

-- Return keep_credit, remove_credit and renew_credit (lib/wake/credits). They are made when a branch
-- needs them: a script makes the functions of a library that it includes at each run.
local function credit_functions()
  --- @include "lib/wake/credits"
  return keep_credit, remove_credit, renew_credit
end
