-- Limits of what a call may ask for, and of what a script does at once.
local MOST = 1000 -- messages, deliveries, or whatever else one call is about
local NUMBER_MOST = 9e15 -- counters, times and other whole numbers: exact in a double
local EXACT_MOST = 9007199254740991 -- 2^53 - 1: the largest whole number below which all are exact in a double
local LEASE_LEAST_MS, LEASE_MOST_MS = 1000, 43200000 -- 12 hours
local WAIT_MOST_MS = 315576000000 -- 10 years, until a message goes again
local JOB_KEPT_MOST_S = 31536000 -- a year, for which a job is kept after its end
local STAGE_KEPT_MOST_MS = 31622400000 -- 366 days, for which a stage is kept
local CLAIM_KEPT_MOST_MS = 315619200000 -- 3653 days, for which a claim says that work was done
local HOLD_MOST_MS = 86400000 -- a day, for which a job, a claim or the leadership is held
local DAY_MS = 86400000
local WORD = 4294967296 -- 2^32: so many numbers fit in four bytes
local READ_BYTES = 4194304 -- of records that a script reads; it goes beyond that by one page
