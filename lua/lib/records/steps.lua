--[[
Steps: parts of the work on a message that are done, for later attempts. The Python twin is
rmq/kernel/core/steps.py.

The field `<member>s` of `bodies` has the entry of a message. The entry is a list of items. Steps
have different names. The cursor that a handler saves is an item without a name. Events that the
message waited for are items as well (lib/events/waits). Their names are the keys of the events.

  byte 1      state: b begun, d done, l done, but its value is lost (not stored), c cursor,
              e the event came, t its time limit ended
  byte 2      size of the name; the name follows
  6 bytes     time of the write, epoch ms
  4 bytes     size of the data; the data follow: nothing, or the number of a codec and the value

The field `steps` of the slot has the number of entries. The field `large` counts large bodies,
these entries and waits (lib/events/waits) together. In a slot without `large`, scripts look for
none of them.
]]
--- @needs slot bodies
--- @include "lib/records/record_bytes"
local STEPS_MOST = 1000 -- items of an entry, so that a search ends soon
local ITEM_HEAD = 12 -- bytes of an item without name and data
local STEPS, EVENTS = '[bdlc]', '[et]' -- states of both kinds of items

-- Find the item with this name. Return the position of the item, the position of the next item, its
-- state, and the number of items before it. Without such an item, both positions are the end.
-- `kind`: STEPS or EVENTS, because a step may have the name of an event
local function find_item(entry, name, kind)
  local at, count = 1, 0
  while at <= #entry do
    local size = string.byte(entry, at + 1)
    local next_at = at + ITEM_HEAD + size + struct.unpack('>I4', entry, at + 8 + size)
    local state = string.sub(entry, at, at)
    if string.sub(entry, at + 2, at + 1 + size) == name and string.find(state, kind) then
      return at, next_at, state, count
    end
    at, count = next_at, count + 1
  end
  return at, at, nil, count
end

-- Return the bytes of an item.
--- @inline
local function item_of(state, name, now, data)
  return state .. string.char(#name) .. name .. write48(now) .. struct.pack('>I4', #data) .. data
end

-- Delete the entries of messages, or their waits (lib/events/waits).
--   part: s the entries, w the waits
--   count: field of the slot that has the number of all entries, or of all waits
local function drop_parts(ids, part, count)
  local names = {}
  for i = 1, #ids do
    names[i] = ids[i] .. part
  end
  local removed = redis.call('HDEL', bodies, unpack(names))
  for _, field in ipairs({ count, 'large' }) do
    if removed > 0 and redis.call('HINCRBY', slot, field, -removed) <= 0 then
      redis.call('HDEL', slot, field)
    end
  end
end
