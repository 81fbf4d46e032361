--[[
take_fields: read what a take needs of the slot, in the order in which take_messages expects it.

Reads:     slot: the key
           session: the field of the caller's session, read as s[14]
Writes:    nothing
Declares:  s
Returns for the caller: no
]]
local s = redis.call('HMGET', slot, 'created', 'max_retries', 'chunk', 'order', 'delivered', 'takes', 'accepted', 'ordered',
  'audited', 'leases_until', 'front', 'paused', 'limit', session, 'timed_priority')
