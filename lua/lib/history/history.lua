-- Sizes in the history, which lib/history/trim_history describes.
local PART = 32768 -- bytes of a part, at least. In a small history, a part is an eighth of it
local PARTS_LEAST = 8
local ENTRY_MOST = 100 -- messages of an entry
-- Bytes that Redis needs for an entry, and for a message in addition to its record.
local ENTRY, KEPT_MESSAGE = 64, 32
local STATE = '^(%d+)-(%d+) (%d+) (%d+)$' -- the field `acked`
local NO_STATE = '0-0 0 0'
