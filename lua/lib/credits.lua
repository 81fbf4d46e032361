--[[
Credits. A consumer that sleeps leaves a credit in the slot: one or more hand-overs of some messages each, on a channel of its
own (lib/hand_over). The field `credits` of the slot has them in the order in which they are served, each as
`<channel> <number> <until, epoch ms> <limit> <lease>`, a call for each hand-over that it is still good for, as
` <session> <sequence number>`, and `;`. A credit that was served and is good for more goes behind the others, and its number
grows by 1. It ends at that time, unless it is renewed. The lease is a number of ms, or s and the number of a shared lease
(lib/shared_leases). The calls are of prepares that found nothing: what is handed over is kept as the answer to the
first of them, so a consumer that did not hear it makes that call again and gets it.

A caller offers a credit as `+<number> <channel>`, with ` <session> <sequence number>` for each call beside its own, and
renews it as `=<number> <channel>`. `*<number> <channel>` is a new one, too, of a subscription that has heard such a number.
The number is that of the first hand-over. A subscription has its channel to itself,
with a random end, so nothing is ever handed over to another one. On a Cluster it is a shard channel, with `}:wake:s:` in its name
and the hash tag of the slot: the master of the slot alone publishes there.
]]
--- @include "lib/check"
--- @include "lib/shared_leases"
--- @include "lib/wake"
--- @include "lib/writes"
local CREDITS_MAX = 64 -- of a slot: more consumers than that are woken by a signal
local CREDIT_MS = 3000 -- how long a credit lasts; its consumer renews it once a second
local CALLS_MAX = 16 -- of a credit
local HAND_OVER_MOST, HAND_OVER_BYTES = 100, 16384 -- messages, and bytes of their records, in one hand-over
local HAND_OVER_LARGEST = 33792 -- a single record: a body of 32 KiB or more stands beside its record

-- A credit in front of others: channel, number, until, limit, lease, session and sequence number of its first call, the others.
local FIRST_CREDIT = '^(%S+) (%d+) (%d+) (%d+) (s?%d+) (%S+) (%d+)([^;]*);'

-- Publish on the channel of a subscription; returns how many connections of this server it was sent to. A refusal, of a user
-- without the right or where the slot is served elsewhere, must not stop the script. The channel of a Cluster is a shard channel.
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

-- How many connections of this server listen on the channel of a subscription; 0 where it does not say.
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

-- The (way, number, channel, further calls, how many these are) of an offer.
--- @inline
local function read_offer(waits)
  local way, number, channel, calls = string.match(waits, '^([+*=])(%d+) ([^ ;]+)(.*)$')
  local others, count = string.gsub(calls or '', ' [^ ;]+ %d+', '')
  if not way or others ~= '' or count >= CALLS_MAX then
    fail('ARG', 'waits')
  end
  return way, number, channel, calls, count
end

-- Whether a shared lease ends no earlier than a credit that is kept now; `ends`: epoch ms, or nothing for a lease of its own.
-- Its owner withdraws the credit before it releases the lease.
--- @inline
local function outlives_credit(ends, now)
  return not ends or ends >= now + CREDIT_MS
end

-- Where the credit of a channel begins and ends; nil where it has none.
--- @inline
local function find_credit(credits, channel)
  local from = string.find(credits, channel .. ' ', 1, true)
  return from, from and string.find(credits, ';', from, true)
end

-- The deadline, epoch s, of what is handed over now.
--- @inline
local function deadline_of(lease, now)
  return string.byte(lease, 1) == 115 and SHARED + string.sub(lease, 2) or math.ceil((now + lease) / 1000) -- s
end

-- Publish deliveries to the connection that left a credit; returns whether it was sent them. A connection of another server must
-- not hear of what is not moved: a replica repeats what its master publishes, and a Cluster node what others do. So after a
-- failover, when a consumer's connection may still be one of the old master, nothing is published for it.
--- @inline
local function publish_deliveries(channel, deliveries)
  local listeners, heard = nil, 0
  listeners = count_listeners(channel)
  if listeners > 0 then
    heard = publish_own(channel, cmsgpack.pack(deliveries))
  end
  return heard > 0
end

-- The credits after one was served: it goes behind the others, with the calls that are left; without any it is gone.
--- @inline
local function credits_after(others, channel, number, till, limit, lease, calls)
  return calls == '' and others
    or string.format('%s%s %d %s %s %s%s;', others, channel, number + 1, till, limit, lease, calls)
end

-- Keep a credit, or renew it in its place, if what is published on its channel, the probe, reaches exactly one subscriber: this
-- server serves the subscription, and nobody else listens. Where a probe was heard before, one subscriber is enough: a probe would
-- wake the consumer once more for each message. `limit` messages are shared out among its calls, `call` is the first.
-- Returns whether it stands. A credit to renew that is not there was used; another one now would be one more than its
-- consumer knows of.
local function keep_credit(slot, store, waits, limit, lease, call, now)
  local way, number, channel, calls, count_of_calls = read_offer(waits)
  local credits = redis.call('HMGET', slot, 'credits')[1] or ''
  local from, to = find_credit(credits, channel)
  if way == '=' and not from then
    return false
  end
  local listeners
  if way == '*' then
    listeners = count_listeners(channel)
  else
    listeners = publish_own(channel, number)
  end
  local kept = listeners == 1
  if kept and not from then
    local _, count = string.gsub(credits, ';', '')
    if count >= CREDITS_MAX then
      credits = string.gsub(credits, '[^ ;]+ %d+ (%d+) [^;]+;', function(till)
        if tonumber(till) <= now then
          return ''
        end
      end)
      _, count = string.gsub(credits, ';', '')
    end
    kept = count < CREDITS_MAX
  end
  if kept or from then
    local entry, ends = '', string.format('%.0f', now + CREDIT_MS)
    if kept and from then -- it stays what it was when it was offered first
      entry = string.gsub(string.sub(credits, from, to), '^([^ ]+ %d+) %d+', '%1 ' .. ends)
    elseif kept then
      local each = math.max(1, math.floor(limit / (count_of_calls + 1)))
      entry = string.format('%s %s %s %d %s %s%s;', channel, number, ends, each, lease, call, calls)
    end
    credits = string.sub(credits, 1, (from or #credits + 1) - 1) .. entry .. string.sub(credits, (to or #credits) + 1)
    if not kept or type(redis.pcall('HSET', slot, 'credits', credits, 'waiting', now + ASLEEP_MS)) ~= 'number' then
      allow_oom(store) -- Redis is at maxmemory, which it seldom is
      redis.call('HSET', slot, 'credits', credits)
      if kept then
        redis.call('HSET', slot, 'waiting', now + ASLEEP_MS)
      end
    end
  end
  return kept
end

-- Remove the credit of a channel, also while Redis is at maxmemory; returns how many hand-overs it was still good for.
local function remove_credit(slot, channel)
  local credits = redis.call('HGET', slot, 'credits') or ''
  local from, to = find_credit(credits, channel)
  if from then
    redis.call('HDEL', slot, 'credits')
    if to - from + 1 < #credits then
      redis.call('HSET', slot, 'credits', string.sub(credits, 1, from - 1) .. string.sub(credits, to + 1))
    end
  end
  if not from then
    return 0
  end
  local _, calls = string.gsub(string.match(string.sub(credits, from, to), '^%S+ %S+ %S+ %S+ %S+(.*);'), ' %S+ %d+', '')
  return calls
end
