--[[
Credits: hand-overs that sleeping consumers are ready for.

A consumer that sleeps leaves a credit in the slot. The credit is good for one or more hand-overs
(lib/wake/hand_over) of some messages each, on a channel of its own. The field `credits` of the slot
has all credits, in the order in which they are served:

  <channel> <number> <until, epoch ms> <limit> <lease> <session> <sequence number> ...;

- `number` is the number of the next hand-over. After each hand-over, the credit moves behind the
  others, and its number grows by 1.
- `until` is when the credit ends, unless it is renewed.
- `limit` is the number of messages in a hand-over.
- `lease` is a number of ms, or s and the number of a shared lease (lib/leases/shared_leases).
- There is a call, ` <session> <sequence number>`, for each hand-over that is left. The calls are
  prepares that found nothing. A hand-over is kept as the answer to the first of these calls. If the
  consumer did not receive it, the consumer repeats that call and gets it.

A caller offers a credit as `+<number> <channel>`, and ` <session> <sequence number>` for each
further call. If its subscription has already received a number, it writes * instead of +. While the
caller sleeps, it sends `=<channel>` each second. This reads the credit, and renews it if it would
end soon.

The name of a channel has a random end, so each subscription has its own channel, and no hand-over
reaches another subscription. On a Cluster it is a shard channel: its name has `}:wake:s:` and the
hash tag of the slot. Only the master of the slot publishes there.
]]
--- @needs slot store
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
--- @include "lib/wake/wake"
--- @include "lib/writes"
local CREDITS_MAX = 64 -- credits of a slot; further consumers are woken by a signal
-- How long a credit lasts, and when it is renewed: a sleeping consumer, which looks at its credit
-- once a second, writes once in 15 s.
local CREDIT_MS, CREDIT_LEFT_MS = 20000, 5000
local RENEWS = 61 -- = as a byte: the offer renews a credit
local CREDIT_LEAST_MS = 3000 -- no credit is kept under a shared lease that ends sooner
local CALLS_MAX = 16 -- calls of a credit, so hand-overs
-- Messages, and bytes of their records, in one hand-over.
local HAND_OVER_MOST, HAND_OVER_BYTES = 100, 16384
-- Bytes of a single record that is handed over alone. Larger bodies are not in the record.
local HAND_OVER_LARGEST = 33792
local UNDER_SHARED = 115 -- s as a byte: the lease of the credit is a shared lease

-- The first credit of a text: channel, number, until, limit, lease, session and sequence number of
-- its first call, and the other calls.
local FIRST_CREDIT = '^(%S+) (%d+) (%d+) (%d+) (s?%d+) (%S+) (%d+)([^;]*);'

-- Publish on the channel of a subscription. Return how many connections of this server receive it.
-- A refusal does not stop the script: the user may lack the right, or another node may serve the
-- slot.
--- @inline
local function publish_own(channel, text)
  local sent
  if string.find(channel, '}:wake:s:', 1, true) then
    sent = redis.pcall('SPUBLISH', channel, text)
  else
    sent = redis.pcall('PUBLISH', channel, text)
  end
  return type(sent) == 'number' and sent or 0
end

-- Return how many connections of this server listen on the channel of a subscription; 0 if the
-- command is refused.
--- @inline
local function count_listeners(channel)
  local count
  if string.find(channel, '}:wake:s:', 1, true) then
    count = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)
  else
    count = redis.pcall('PUBSUB', 'NUMSUB', channel)
  end
  return count[2] or 0
end

-- Parse an offer. Return its way (the first character), number, channel, and further calls as text;
-- nil if it is no offer. An offer that renews has no number and no calls.
--- @inline
local function parse_offer(offer)
  local way, number, channel, calls = string.match(offer, '^([+*])(%d+) ([^ ;]+)(.*)$')
  if not way then
    way, channel, calls = string.match(offer, '^(=)([^ ;]+)(.*)$')
  end
  local others, count = string.gsub(calls or '', ' [^ ;]+ %d+', '')
  if others ~= '' or count >= CALLS_MAX then
    way = nil
  end
  return way, number, channel, calls
end

-- Check an offer, and return its channel.
--- @inline
local function offered_channel(offer)
  local way, _, channel = parse_offer(offer)
  if not way then
    fail('ARG', 'waits')
  end
  return channel
end

-- Return when a new or renewed credit ends, epoch ms; nil if that would be too soon. A credit ends
-- with its shared lease: the owner of the lease withdraws the credit before it releases the lease.
-- `lease_end`: end of the shared lease; nil without a shared lease.
--- @inline
local function credit_end(lease_end, now)
  local ends = math.min(now + CREDIT_MS, lease_end or math.huge)
  return ends >= now + CREDIT_LEAST_MS and ends or nil
end

-- Return where the credit of a channel begins and ends in the field `credits`; nil if there is
-- none.
--- @inline
local function find_credit(credits, channel)
  local from = string.find(credits, channel .. ' ', 1, true)
  return from, from and string.find(credits, ';', from, true)
end

-- Return the deadline, epoch s, of a delivery that is handed over now. `lease`: from a credit.
--- @inline
local function deadline_of(lease, now)
  if string.byte(lease, 1) == UNDER_SHARED then
    return SHARED_DEADLINE + string.sub(lease, 2)
  end
  return math.ceil((now + lease) / 1000)
end

-- Publish deliveries to the connection that left a credit. Return whether a connection receives
-- them. First the listeners of this server are counted. A replica repeats the publications of its
-- master, and a Cluster node those of other nodes. After a failover, the consumer may still listen
-- at the old master. It must not receive deliveries that this server does not count.
--- @inline
local function publish_deliveries(channel, deliveries)
  local heard = 0
  local listeners = count_listeners(channel)
  if listeners > 0 then
    heard = publish_own(channel, cmsgpack.pack(deliveries))
  end
  return heard > 0
end

-- Parse the first credit of a text. Return its parts, and the text of the `others`; nil if there is
-- no credit.
local function first_credit(credits)
  local _, last, channel, number, till, limit, lease, session, call_number, calls =
    string.find(credits, FIRST_CREDIT)
  return last and {
    channel = channel, number = number, till = tonumber(till), limit = limit, lease = lease,
    session = session, call_number = call_number, calls = calls,
    others = string.sub(credits, last + 1),
  }
end

-- Return the text of a slot's credits after `credit`, the first, was served. It moves behind the
-- others with its remaining calls. Without a remaining call, it is removed.
local function credits_after(credit)
  if credit.calls == '' then
    return credit.others
  end
  return string.format('%s%s %d %.0f %s %s%s;', credit.others, credit.channel, credit.number + 1,
    credit.till, credit.limit, credit.lease, credit.calls)
end

-- Write the credits of a slot, and that a consumer sleeps.
local function write_credits(credits, now)
  local asleep_until = now + ASLEEP_MS
  local written = redis.pcall('HSET', slot, 'credits', credits, 'waiting', asleep_until)
  if type(written) ~= 'number' then -- Redis is at maxmemory, which is rare
    allow_oom(store)
    redis.call('HSET', slot, 'credits', credits, 'waiting', asleep_until)
  end
end

-- Make room for another credit: if there are CREDITS_MAX, leave out ended credits. Return the text
-- of the credits, and whether there is room.
local function make_room(credits, now)
  local _, count = string.gsub(credits, ';', '')
  if count < CREDITS_MAX then
    return credits, true
  end
  credits = string.gsub(credits, '[^ ;]+ %d+ (%d+) [^;]+;', function(till)
    if tonumber(till) <= now then
      return ''
    end
  end)
  _, count = string.gsub(credits, ';', '')
  return credits, count < CREDITS_MAX
end

-- Count the calls that a text names.
local function count_calls(calls)
  local _, count = string.gsub(calls, ' %S+ %d+', '')
  return count
end

-- Keep a credit if its channel has exactly one subscriber: then this server serves the
-- subscription, and no other client listens. To test this, a number is published: the probe. If the
-- subscription has already received a probe, the subscribers are counted instead, because a probe
-- wakes the consumer. Return for how many hand-overs the credit is good; 0: it is not kept.
-- - offer: an offer that was checked
-- - ends: end of the credit, epoch ms
-- - limit: number of messages, which is divided among the hand-overs
-- - call: first call of the credit
local function keep_credit(offer, ends, limit, lease, call, now)
  local way, number, channel, calls = parse_offer(offer)
  local listeners
  if way == '*' then
    listeners = count_listeners(channel)
  else
    listeners = publish_own(channel, number)
  end
  if listeners ~= 1 then
    return 0
  end
  local credits = redis.call('HMGET', slot, 'credits')[1] or ''
  local from, to = find_credit(credits, channel)
  if from then
    credits = string.sub(credits, 1, from - 1) .. string.sub(credits, to + 1)
  end
  local is_room
  credits, is_room = make_room(credits, now)
  if not is_room then
    return 0
  end
  local good = 1 + count_calls(calls)
  local each = math.max(1, math.floor(limit / good))
  local entry = string.format('%s %s %.0f %d %s %s%s;',
    channel, number, ends, each, lease, call, calls)
  write_credits(credits .. entry, now)
  return good
end

-- Return the number of hand-overs for which a credit is still good.
local function hand_overs_of(entry)
  return count_calls(string.match(entry, '^%S+ %S+ %S+ %S+ %S+(.*);'))
end

-- Remove the credit of a channel, also while Redis is at maxmemory. Return the number of hand-overs
-- for which it was still good.
local function remove_credit(channel)
  local credits = redis.call('HGET', slot, 'credits') or ''
  local from, to = find_credit(credits, channel)
  if not from then
    return 0
  end
  redis.call('HDEL', slot, 'credits')
  if to - from + 1 < #credits then
    local others = string.sub(credits, 1, from - 1) .. string.sub(credits, to + 1)
    redis.call('HSET', slot, 'credits', others)
  end
  return hand_overs_of(string.sub(credits, from, to))
end

-- Return whether to renew a credit: it ends within CREDIT_LEFT_MS and would last longer, or the
-- clock was set back. `till`: its present end; `ends`: its new end.
--- @inline
local function is_to_renew(till, ends, now)
  return till < now + CREDIT_LEFT_MS and till < ends or till > now + CREDIT_MS
end

-- Renew the credit of a channel if it ends soon. Return the number of hand-overs for which it is
-- still good; 0: there is none. If the server no longer serves the subscription (`listeners`), the
-- credit is removed. A missing credit was used, and is not created again: its consumer would not
-- expect it. `credits`: the field of the slot.
local function renew_credit(credits, channel, listeners, ends, now)
  local from, to = find_credit(credits, channel)
  if not from then
    return 0
  end
  if listeners ~= 1 then
    remove_credit(channel)
    return 0
  end
  local entry = string.sub(credits, from, to)
  local first, till, rest = string.match(entry, '^(%S+ %d+ )(%d+)(.*)$')
  local is_due = is_to_renew(tonumber(till), ends, now)
  if is_due then
    entry = first .. string.format('%.0f', ends) .. rest
    write_credits(string.sub(credits, 1, from - 1) .. entry .. string.sub(credits, to + 1), now)
  end
  return hand_overs_of(entry)
end

-- Return whether next_ready need not look at each slot for the credits of a channel. This is so if
-- the credit of the first slot exists and is not to be renewed, and no slot has a message that
-- waits or is in flight. The credits of a channel are left and renewed together, one for each slot.
local function are_untouched(keys, credits, channel, ends, now)
  local from, to = find_credit(credits, channel)
  local till = from and string.match(string.sub(credits, from, to), '^%S+ %d+ (%d+)')
  if not till then
    return false
  end
  local is_due = is_to_renew(tonumber(till), ends, now)
  if is_due then
    return false
  end
  local queues = {}
  for i = 1, #keys, 3 do
    queues[#queues + 1], queues[#queues + 2] = keys[i + 1], keys[i + 2]
  end
  return redis.call('EXISTS', unpack(queues)) == 0
end
