--[[
The history of a slot: acked messages that readers can still read, in the order of their acks.

`acked` is a stream. An entry has one field `m`, with the messages of one ack, at most 100. For each
message, it has the member, 4 bytes with the size of the record, and the record, with the large body
in it. The id of an entry is the time of the ack, epoch ms, and a number in that ms.
Entries are removed in parts of about PART bytes. For each part that has ended, the list
`ackedparts` has the id of its last entry and its bytes. So a script removes a part without reading
its entries. Only in a slot that has had offloaded bodies, it reads the entries, and leaves
tombstones.

The field `history` of the slot is the topic's setting: `<most bytes of this slot>:<keep, ms>`. The
field `acked` is `<id of the newest entry> <bytes of all entries> <bytes of the part that is open>`.
The field `acked_gone` is the id of the newest entry that was removed: a reader behind it has missed
messages.
]]
--- @needs slot acked ackedparts
--- @include "lib/history/history"
--- @include "lib/member"
--- @include "lib/writes"
local PARTS_MOST = 16 -- parts that one call removes, in addition to as many bytes as it adds
local FREED = 4 -- parts that a call removes while Redis is at maxmemory

-- Leave tombstones for the offloaded bodies of the entries up to `last`.
local function leave_tombstones_up_to(last)
  --- @include "lib/records/leave_tombstones"
  --- @include "lib/records/large_bodies"
  local entries, references = redis.call('XRANGE', acked, '-', last), {}
  for i = 1, #entries do
    local packed, at = entries[i][2][2], MEMBER + 1
    while at < #packed do
      local size = struct.unpack('>I4', packed, at)
      local reference = offloaded_reference(string.sub(packed, at + 4, at + 3 + size))
      references[#references + 1] = reference
      at = at + 4 + size + MEMBER
    end
  end
  if #references > 0 then
    local released = redis.call('HGET', slot, 'released')
    leave_tombstones(references, released)
  end
end

-- Remove the oldest part that has ended. Return its bytes, or nil if there is none.
local function drop_part()
  local part = redis.call('LPOP', ackedparts)
  if not part then
    return nil
  end
  local ms, seq, size = string.match(part, '^(%d+)-(%d+) (%d+)$')
  if redis.call('HGET', slot, 'offloaded') then
    leave_tombstones_up_to(ms .. '-' .. seq)
  end
  redis.call('XTRIM', acked, 'MINID', ms .. string.format('-%.0f', seq + 1))
  redis.call('HSET', slot, 'acked_gone', ms .. '-' .. seq)
  return tonumber(size)
end

-- Remove parts that ended before a time, and the oldest parts of more than `most` bytes. Return the
-- bytes that are left, and whether more is to be removed. `parts`: how many may be removed.
local function trim_history(bytes, most, before, parts)
  while parts > 0 do
    local first = redis.call('LINDEX', ackedparts, 0)
    if not first or bytes <= most and tonumber(string.match(first, '^%d+')) >= before then
      return bytes, false
    end
    bytes, parts = math.max(0, bytes - drop_part()), parts - 1
  end
  return bytes, true
end

-- End the open part, if it has messages.
local function end_part(newest, open)
  if open > 0 then
    redis.call('RPUSH', ackedparts, newest .. string.format(' %.0f', open))
  end
end

-- Remove the oldest parts, because Redis is at maxmemory. Return the bytes that are left.
local function free_room(newest, bytes, open)
  end_part(newest, open)
  bytes = trim_history(bytes, 0, 0, FREED)
  return bytes
end
