-- Fields of a slot that many scripts read at once. Each constant is the place of a field in the
-- list that a function below returns. A field that is in several lists has the same place in each.
-- A field that the slot does not have is false. lua/README.md describes the fields.
--- @needs slot
local CREATED, ACCEPTED, ORDER, FRONT, SESSION, WAITING, GROUPS = 1, 2, 3, 4, 5, 7, 12
-- Of read_store_fields, with those of the first line:
local CAPACITY, OVERFLOW, DEDUP_MS, SETTLED_TURN, PAUSED_SEND, OUTCOMES = 6, 8, 9, 10, 11, 13
-- Of read_take_fields, with those of the first line except WAITING. EXTRA is in the place of the
-- session:
local EXTRA = 5
local MAX_RETRIES, CHUNK, DELIVERED, TAKES, ORDERED, AUDITED = 6, 7, 8, 9, 10, 11
local PAUSED, LIMIT, TIMED_PRIORITY, LEASES_UNTIL, WAITED = 13, 14, 15, 16, 17
-- Of read_return_fields, with CREATED, FRONT, WAITING, GROUPS, MAX_RETRIES, DELIVERED, ORDERED and
-- AUDITED:
local RETRY, JITTER, RETENTION, BLOCKED = 2, 3, 5, 9
local GROUPS_PAUSED, CANCELLING, DEAD_TO = 13, 14, 15

-- Read the fields that a script needs to store messages. `session`: field of the caller's session.
--- @inline
local function read_store_fields(session)
  return redis.call('HMGET', slot, 'created', 'accepted', 'order', 'front', session, 'capacity',
    'waiting', 'overflow', 'dedup_ms', 'settled_turn', 'paused_send', 'groups', 'outcomes')
end

-- Read the fields that a script needs to receive messages. `extra_field`: field of the caller's
-- session (SESSION), or another field (EXTRA).
--- @inline
local function read_take_fields(extra_field)
  return redis.call('HMGET', slot, 'created', 'accepted', 'order', 'front', extra_field,
    'max_retries', 'chunk', 'delivered', 'takes', 'ordered', 'audited', 'groups', 'paused', 'limit',
    'timed_priority', 'leases_until', 'waited')
end

-- Read the fields that a script needs to give deliveries back.
--- @inline
local function read_return_fields()
  return redis.call('HMGET', slot, 'created', 'retry', 'jitter', 'front', 'dead_retention_ms',
    'max_retries', 'waiting', 'delivered', 'blocked', 'ordered', 'audited', 'groups',
    'groups_paused', 'cancelling', 'dead_to')
end
