-- Claims on the targets of pending entries (lib/follow_ups/pending).
local CLAIM_MS = 5000 -- how long a process sends the entries of a target alone
local PLACE_MOST = 133 -- bytes of the name of a slot: topic, colon, index
