--[[
Large bodies stand beside the records, in a hash of their own, so that no script carries them. The client writes a body just
before the script that stores its record, in one transaction, and reads it with a plain command. The Python twin is
rmq/core/large_body.py.

Such a record has the flag 8 without the flag 4, and ends with a reference instead of a body: the size (4 bytes), then 8 random
bytes of its sender. The body has the name <member><8 bytes>, so two senders of one id never write the same field.
The field `large` of the slot counts them.
]]
local REFERENCE = 12

local function is_large(record)
  local flags = string.byte(record, 1) % 16
  return flags >= 8 and flags < 12
end

-- The size of the body that the record of a large one refers to.
local function large_size(record)
  return #record >= 8 + REFERENCE and struct.unpack('>I4', record, #record - REFERENCE + 1) or 0
end

-- Remove records, with the large bodies that they refer to. Every write here frees memory, until bodies were removed.
local function drop_records(slot, records, bodies, ids)
  local names = {}
  if redis.call('HLEN', bodies) > 0 then
    local page = tonumber(redis.call('HGET', slot, 'chunk') or 1)
    for from = 1, #ids, page do
      local batch = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + page - 1)))
      for i = 1, #batch do
        if batch[i] and #batch[i] > 0 and is_large(batch[i]) then
          names[#names + 1] = ids[from + i - 1] .. string.sub(batch[i], -8)
        end
      end
    end
  end
  redis.call('HDEL', records, unpack(ids))
  if #names > 0 then
    redis.call('HDEL', bodies, unpack(names))
    if redis.call('HINCRBY', slot, 'large', -#names) <= 0 then
      redis.call('HDEL', slot, 'large')
      redis.call('UNLINK', bodies) -- with what a send has left that failed after its bodies were written
    end
  end
end

-- The names of the large bodies that come with a send, by position; false where there is none. `given`: from at + 1 on, as
-- send.lua has it.
local function sent_names(given, at, count, head, members)
  local names, any = {}, false
  for i = 1, count do
    local own = members and head or given[at + count + 2 * i - 1]
    local rest = members and given[at + 1 + i] or given[at + count + 2 * i]
    names[i] = #own == 4 and is_large(own) and (members or given)[members and i or at + i] .. string.sub(rest, -8)
    any = any or names[i]
  end
  return any and names
end

-- Remove those of these bodies that no record refers to: their messages were not stored, or are settled.
local function drop_unused(records, bodies, names)
  for i = 1, names and #names or 0 do
    local name = names[i]
    local record = name and redis.call('HGET', records, string.sub(name, 1, -9))
    if name and not (record and #record >= 8 and is_large(record) and string.sub(record, -8) == string.sub(name, -8)) then
      redis.call('HDEL', bodies, name)
    end
  end
end
