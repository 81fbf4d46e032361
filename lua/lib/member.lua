-- Members: how scripts name messages.
local MEMBER = 13 -- bytes of a member: the id of a message without slot and check, which the key says
local KEPT = 64 -- the first byte of a member is as large or larger where its sender keeps the id, to send it again
local DERIVED = 128 -- the same where the id is derived from a dedup key
