-- The expired messages of a take.
--- @needs slot failures
--- @include "lib/audit"
--- @include "lib/dead_letters/dead_letters"
--- @include "lib/results/note_outcomes"
--- @include "lib/slot_fields"

-- Drop the expired messages of a batch, or add them to the DeadQueue: the topic's `on_expire`
-- decides.
local function end_expired(take, gone)
  local fields, now, ids = take.fields, take.now, gone.ids
  local on_expire, retention, dead_to = unpack(redis.call('HMGET', slot, 'on_expire',
    'dead_retention_ms', 'dead_to'))
  local let_next_out
  if fields[GROUPS] then
    local _, leaving = take.group_functions()
    let_next_out = leaving(ids, { died = on_expire ~= 'drop' })
  end
  if on_expire == 'drop' then
    note_outcomes(ids, now, 'e')
    drop_records(ids)
    redis.call('HDEL', failures, unpack(ids))
    redis.call('HINCRBY', slot, 'expired', #ids)
    if fields[AUDITED] then
      account_for('accounted', add_numbers(gone.records, number_of, {}), now)
    end
  else
    gone.dead_to = dead_to
    add_dead(gone, fields[AUDITED], tonumber(retention), now)
  end
  if let_next_out then
    let_next_out()
  end
end

-- Keep the live messages of a batch in `ids`, `records` and `retries_left`. Return the expired
-- messages, as add_dead takes them.
local function split_expired(batch, expired, max_retries)
  local ids, read, retries_left = batch.ids, batch.records, batch.retries_left
  local count, live = 0, {}
  local gone = { ids = {}, records = {}, delivery_counts = {}, reason = 'x', details = '' }
  for i = 1, #read do
    local own_left = retries_left and retries_left[i]
    if expired[i] then
      local n = #gone.ids + 1
      gone.ids[n], gone.records[n] = ids[i], read[i]
      gone.delivery_counts[n] = max_retries - (own_left or max_retries)
    else
      count = count + 1
      ids[count], read[count], live[count] = ids[i], read[i], own_left or nil
    end
  end
  batch.count, batch.retries_left = count, retries_left and live
  return gone
end
