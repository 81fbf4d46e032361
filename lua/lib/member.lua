-- Members: scripts name messages by them. A member is the id without slot and checksum, which the
-- name of the key has.
local MEMBER = 13 -- bytes of a member
-- The first byte of a member is at least KEPT if the sender keeps the id, to send it again. It is
-- at least DERIVED if the id is derived from a dedup key.
local KEPT, DERIVED = 64, 128
