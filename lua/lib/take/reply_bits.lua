-- Bits of the reply of prepare, which are added up. The Python twin is in
-- rmq/kernel/consumer/scripts.py.
local LEASES_EXPIRED = 1 -- leases of single deliveries expired and need a rollback
local SHARED_EXPIRED = 2 -- the lease of a query, or a shared lease, expired and needs a rollback
local LARGE_BODIES = 4 -- records refer to large bodies
local CREDIT_KEPT = 8 -- the credit is kept
local CREDIT_REPEATED = 16 -- this call repeats a call with a credit
local ANY_WAITED = 32 -- messages have waited for an event
local HAND_OVER = 64 -- for each hand-over for which the credit is still good, or was until now
