-- Limits of what a call may ask for, and of what a script does at once.
local MOST = 1000 -- messages, deliveries, or whatever else one call is about
local NUMBER_MOST = 9e15 -- counters, times and other whole numbers: exact in a double
local LEASE_LEAST_MS, LEASE_MOST_MS = 1000, 43200000 -- 12 hours
local WAIT_MOST_MS = 315576000000 -- 10 years, until a message goes again
local HOLD_MOST_MS = 86400000 -- a day, for which a job, a claim or the leadership is held
local READ_BYTES = 4194304 -- of records that a script reads; it goes beyond that by one page
