-- Fields of a slot that a store or a take reads at once, and the place of each in the list that it
-- gets: false where the slot has no such field. lua/README.md says what they hold.
--- @needs slot
local CREATED, ACCEPTED, ORDER, FRONT, SESSION = 1, 2, 3, 4, 5
local WAITING, CAPACITY, OVERFLOW, DEDUP_MS, SETTLED_TURN, PAUSED_SEND, GROUPS = 6, 7, 8, 9, 10, 11, 12 -- where messages are stored
local MAX_RETRIES, CHUNK, DELIVERED, TAKES, ORDERED = 6, 7, 8, 9, 10 -- these, and the next ones: where messages are taken
local AUDITED, LEASES_UNTIL, PAUSED, LIMIT, TIMED_PRIORITY, GROUPED = 11, 12, 13, 14, 15, 16
-- Where deliveries are given back; with CREATED, FRONT, MAX_RETRIES, DELIVERED, ORDERED, AUDITED
-- and GROUPS.
local RETRY, JITTER, RETENTION, AWAITED, BLOCKED, GROUPS_PAUSED = 2, 3, 5, 7, 9, 13

-- What a store needs of the slot. `session`: the field of the caller's session.
--- @inline
local function read_store_fields(session)
  return redis.call('HMGET', slot, 'created', 'accepted', 'order', 'front', session, 'waiting', 'capacity', 'overflow',
    'dedup_ms', 'settled_turn', 'paused_send', 'groups')
end

-- What a take needs of the slot.
--- @inline
local function read_take_fields(session)
  return redis.call('HMGET', slot, 'created', 'accepted', 'order', 'front', session, 'max_retries', 'chunk', 'delivered', 'takes',
    'ordered', 'audited', 'leases_until', 'paused', 'limit', 'timed_priority', 'groups')
end

-- Read the fields that a script needs to give deliveries back.
--- @inline
local function read_return_fields()
  return redis.call('HMGET', slot, 'created', 'retry', 'jitter', 'front', 'dead_retention_ms',
    'max_retries', 'waiting', 'delivered', 'blocked', 'ordered', 'audited', 'groups',
    'groups_paused')
end
