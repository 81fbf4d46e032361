--[[
store_fields: read what a store needs of the slot, in the order in which store_messages and store_uniform expect it.

Reads:     slot: the key
           session: the field of the caller's session, read as s[10]; s[11]: since when sends are paused
Writes:    nothing
Declares:  s
Returns for the caller: no
]]
local s = redis.call('HMGET', slot, 'created', 'accepted', 'order', 'waiting', 'capacity', 'overflow', 'dedup_ms',
  'settled_turn', 'front', session, 'paused_send')
