-- Members: how scripts name messages.
local MEMBER = 13 -- bytes of a member: the id of a message without slot and check, which the key says
