-- Removing records with their bodies, which lib/records/large_bodies describes.
--- @needs slot records bodies
--- @include "lib/records/large_bodies"
--- @include "lib/records/leave_tombstones"

-- Read records, `page` at a time. Return the names of their large bodies, and the references to
-- their offloaded bodies.
--- @inline
local function find_bodies(ids, page)
  local own, references = {}, {}
  for from = 1, #ids, page do
    local last = math.min(#ids, from + page - 1)
    local batch = redis.call('HMGET', records, unpack(ids, from, last))
    for i = 1, #batch do
      local record = batch[i] or ''
      local has_body = is_large(record)
      if has_body then
        local name = body_name(ids[from + i - 1], record)
        own[#own + 1] = name
      else
        local reference = offloaded_reference(record)
        references[#references + 1] = reference
      end
    end
  end
  return own, references
end

-- Remove large bodies. `keeps_hash`: whether the hash may have other fields after the last body.
--- @inline
local function drop_bodies(names, keeps_hash)
  redis.call('HDEL', bodies, unpack(names))
  if redis.call('HINCRBY', slot, 'large', -#names) > 0 then
    return
  end
  redis.call('HDEL', slot, 'large')
  if not keeps_hash then
    redis.call('UNLINK', bodies) -- a send may have failed after it had written its bodies
  end
end

-- Remove records with their large bodies, steps and waits for events. Leave tombstones for their
-- offloaded bodies, unless another slot or the history now refers to these bodies (`bodies_move`).
-- Until the records are removed, each write frees memory.
local function drop_records(ids, bodies_move)
  local chunk, large, offloaded, released, steps, waited = unpack(redis.call('HMGET', slot, 'chunk',
    'large', 'offloaded', 'released', 'steps', 'waited'))
  local names, gone = {}, {}
  if large or offloaded then
    redis.call('HLEN', bodies) -- a wrong type shows before the first write
    names, gone = find_bodies(ids, tonumber(chunk or 1))
  end
  redis.call('HDEL', records, unpack(ids))
  if waited then
    --- @include "lib/events/end_waits"
    end_waits(ids)
  end
  if steps or waited then
    --- @include "lib/records/steps"
    drop_parts(ids, 's', 'steps')
    if waited then
      drop_parts(ids, 'w', 'waited')
    end
  end
  if #names > 0 then
    drop_bodies(names, offloaded)
  end
  if offloaded and not bodies_move and #gone > 0 then
    leave_tombstones(gone, released)
  end
end
