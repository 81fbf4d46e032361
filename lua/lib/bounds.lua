-- Limits of arguments, and of the work that a script does at once.
local MOST = 1000 -- messages, deliveries or other things in one call
local JOIN_MOST = 500 -- due messages whose records a take reads, or which join their priority
local GROUPED_MOST = 250 -- messages that enter their groups in one call
-- Messages of a query that one call receives, settles or hands out by their ids. Lua can unpack
-- 7999 values.
local QUERY_MOST = 4000
local SLOTS_MOST = 1024 -- slots in one call
local NUMBER_MOST = 9e15 -- counters, times and other whole numbers: exact in a double
local EXACT_MOST = 9007199254740991 -- 2^53 - 1: whole numbers up to this are exact in a double
local LEASE_LEAST_MS, LEASE_MOST_MS = 1000, 43200000 -- 12 hours
local WAIT_MOST_MS = 315576000000 -- 10 years: the longest wait for a retry
local JOB_KEPT_MOST_S = 31536000 -- a year: how long an ended job is kept
local STAGE_KEPT_MOST_MS = 31622400000 -- 366 days
local CLAIM_KEPT_MOST_MS = 315619200000 -- 3653 days: how long a claim says that work was done
local HOLD_MOST_MS = 86400000 -- a day: the longest lease of a job, a claim or the leadership
local DAY_MS, SECOND_US = 86400000, 1000000
local SCHEDULES_MOST = 1000000 -- of a topic
local HISTORY_KEPT_MOST_MS = 10000000000 -- 115 days
local WORD = 4294967296 -- 2^32: how many numbers four bytes can have
local SPAN_MOST_MS = 9e12 -- 285 years
local DUE_MOST = 1e14 -- the year 5138, epoch ms: a time in a record has six bytes
local JOB_LOG_MOST = 100000 -- outcomes in the log of a job
local DELIVERIES_MOST = 1e12 -- in one count of a report
local LAST_SIX = 1000000 -- a number modulo this is its last six digits
local READ_BYTES = 4194304 -- of records that a script reads; it may read one page more
