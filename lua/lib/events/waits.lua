--[[
Messages that wait for an event. If a handler raises WaitFor, its message is suspended: it goes back
to the StoreQueue until an event with its key comes, or its time limit ends. In a slot in order it
goes to its old place, in another slot it is due at the end of its time limit.

The field `<member>w` of `bodies` has the wait of a message:

  byte 1      w waiting; o over: the event came, the time limit ended, or the message died
  bytes 2-7   since when, epoch ms
  bytes 8-13  end of the time limit, epoch ms
  rest        key of the event

The events that a message got are items in the entry of its steps (lib/records/steps).

Fields of the slot: `waited` has the number of messages with this field, `suspended` how many of
them wait. The field `large` counts them as well, so that the short form of ack is not used. The
key `waits` has when a process next registers a waiting message with its event, epoch ms. It may
also have members that no longer wait. event_checks removes these.
]]
--- @include "lib/bounds"
local LIMIT_AT = 8 -- position of the end of the time limit
local WAIT_HEAD = 13 -- bytes of a wait before the key
local SUSPENDED, IS_WAITING = 'w', 119 -- the first byte of a message that waits

-- Return the names of the fields that have the waits of messages.
--- @inline
local function wait_names(ids)
  local names = {}
  for i = 1, #ids do
    names[i] = ids[i] .. 'w'
  end
  return names
end

-- Return the key of the event for which a message waits; nil if it does not wait. `wait`: the value
-- of the field, or false.
--- @inline
local function awaited_key(wait)
  return wait and string.sub(wait, 1, 1) == SUSPENDED and string.sub(wait, WAIT_HEAD + 1) or nil
end

-- Return 1 if a message waits for an event, else 0.
--- @inline
local function waiting_count(wait)
  return wait and string.byte(wait, 1) == IS_WAITING and 1 or 0
end

-- Return the end of the time limit of a wait, epoch ms.
--- @inline
local function limit_of(wait)
  local high, low = struct.unpack('>I2I4', wait, LIMIT_AT)
  return high * WORD + low
end

-- Return the value of the field when the wait is over.
--- @inline
local function ended_wait(wait)
  return 'o' .. string.sub(wait, 2)
end
