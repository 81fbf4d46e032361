-- Limits of events.
local KEY_MOST = 255 -- bytes of the key of an event
local DATA_MOST = 262145 -- bytes of its data: the number of the codec, and a body of 256 KiB
