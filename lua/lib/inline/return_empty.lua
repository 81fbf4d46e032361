--[[
return_empty: end a take that found nothing, for take_messages: say when the slot next has work, and note that the
caller may sleep until then, or keep its credit.

Reads:     slot, store, prepare: keys
           s: the fields of the slot, from take_fields
           now, now_us, hold, gate, promoted, reply, waits, again
           limit, credit_lease: of the credit, where waits is an offer; the lease in ms, or s and the number of a shared one
           call: where again is true, or waits is an offer
Writes:    nothing
Declares:  wait, field
Returns for the caller: yes: the reply
]]
--- @include "lib/wake"
--- @include "lib/writes"
local wait, field = next_ready_in(store, prepare, now_us, s[10], hold, gate)
reply[1] = promoted > 0 and 0 or wait
if #waits > 1 and field == 'waiting' and not hold and reply[1] ~= 0 then
  --- @include "lib/credits"
  if keep_credit(slot, store, waits, limit, credit_lease, call, now) then
    reply[2] = reply[2] + 8
  end
end
if waits ~= '0' and field and reply[1] ~= 0 and is_to_note(redis.call('HGET', slot, field), now) then
  note_sleeper(slot, store, field, now)
end
if waits ~= '0' and gate and gate.sends_wake and is_to_note(redis.call('HGET', slot, 'waiting'), now) then
  note_sleeper(slot, store, 'waiting', now)
end
if again then
  -- A poll that finds nothing writes nothing; but an earlier copy of this call may still be in the network.
  --- @include "lib/replay"
  allow_oom(store)
  remember(slot, call, now, '0:0:')
end
return reply
