-- The functions of credits, for a script with several branches that seldom need them.

-- Return keep_credit, remove_credit and renew_credit (lib/wake/credits). A script creates the
-- functions of an included library at each run, and most runs need none of these functions.
local function credit_functions()
  --- @include "lib/wake/credits"
  return keep_credit, remove_credit, renew_credit
end
