-- Fields of a slot that many scripts read at once. Each constant is the place of a field in the
-- list that a function below returns. A field that the slot does not have is false. lua/README.md
-- describes the fields. The fields `waiting` and `groups` have different places in the lists, so
-- their constants have different names in different scripts: WAITING, AWAITED; GROUPS, GROUPED.
--- @needs slot
local CREATED, ACCEPTED, ORDER, FRONT, SESSION = 1, 2, 3, 4, 5
-- Of read_store_fields, with the first five:
local WAITING, CAPACITY, OVERFLOW, DEDUP_MS = 6, 7, 8, 9
local SETTLED_TURN, PAUSED_SEND, GROUPS, OUTCOMES = 10, 11, 12, 13
-- Of read_take_fields, with the first five. EXTRA is the field in the place of the session.
local EXTRA = 5
local MAX_RETRIES, CHUNK, DELIVERED, TAKES, ORDERED = 6, 7, 8, 9, 10
local AUDITED, LEASES_UNTIL, PAUSED, LIMIT, TIMED_PRIORITY, GROUPED = 11, 12, 13, 14, 15, 16
local WAITED = 17
-- Of read_return_fields, with CREATED, FRONT, MAX_RETRIES, DELIVERED, ORDERED, AUDITED and GROUPS:
local RETRY, JITTER, RETENTION, AWAITED, BLOCKED = 2, 3, 5, 7, 9
local GROUPS_PAUSED, CANCELLING, DEAD_TO = 13, 14, 15

-- Read the fields that a script needs to store messages. `session`: field of the caller's session.
--- @inline
local function read_store_fields(session)
  return redis.call('HMGET', slot, 'created', 'accepted', 'order', 'front', session, 'waiting',
    'capacity', 'overflow', 'dedup_ms', 'settled_turn', 'paused_send', 'groups', 'outcomes')
end

-- Read the fields that a script needs to receive messages. `extra_field`: field of the caller's
-- session (SESSION), or another field (EXTRA).
--- @inline
local function read_take_fields(extra_field)
  return redis.call('HMGET', slot, 'created', 'accepted', 'order', 'front', extra_field,
    'max_retries', 'chunk', 'delivered', 'takes', 'ordered', 'audited', 'leases_until', 'paused',
    'limit', 'timed_priority', 'groups', 'waited')
end

-- Read the fields that a script needs to give deliveries back.
--- @inline
local function read_return_fields()
  return redis.call('HMGET', slot, 'created', 'retry', 'jitter', 'front', 'dead_retention_ms',
    'max_retries', 'waiting', 'delivered', 'blocked', 'ordered', 'audited', 'groups',
    'groups_paused', 'cancelling', 'dead_to')
end
