-- Adding many acked messages to the history, which lib/history/trim_history describes.
--- @needs slot records bodies
--- @include "lib/history/add_entry"
--- @include "lib/records/large_bodies"

-- Return the record of a message, with its large body in it.
local function whole_record(id, record)
  local is_apart = is_large(record)
  if not is_apart then
    return record
  end
  local name = body_name(id, record)
  local body = redis.call('HGET', bodies, name) or ''
  local first = string.char(string.byte(record, 1) - COLLECTS)
  return first .. string.sub(record, 2, -REFERENCE - 1) .. body
end

-- Add messages to the history before they are removed. Call this before the first write, as
-- add_entry.
--   history, text, large: the fields `history`, `acked` and `large`; page: the field `chunk`
--- @inline
local function keep_acked(ids, history, text, large, page, now)
  local messages, parts, size, count = {}, 0, 0, #ids
  local prefix_of, prefix = nil, nil
  for from = 1, count, page do
    local batch =
      redis.call('HMGET', records, unpack(ids, from, math.min(count, from + page - 1)))
    for i = 1, #batch do
      local id, record = ids[from + i - 1], batch[i] or ''
      if large then
        record = whole_record(id, record)
      end
      if #record ~= prefix_of then
        prefix_of, prefix = #record, struct.pack('>I4', #record)
      end
      messages[parts + 1], messages[parts + 2], messages[parts + 3] = id, prefix, record
      parts, size = parts + 3, size + #record + KEPT_MESSAGE
      if size >= PART or parts >= 3 * ENTRY_MOST or from + i - 1 == count then
        local packed = table.concat(messages)
        text = add_entry(packed, size, history, text, now)
        messages, parts, size = {}, 0, 0
      end
    end
  end
  redis.call('HSET', slot, 'acked', text)
end
