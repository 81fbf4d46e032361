--[[
withdraw: remove the credits of a subscription, and publish a number on its channel. A hand-over for
a credit that was used is published before that number. So a consumer that has read the number has
read all hand-overs. One call may name many slots that are on one server.

ARGV[1]   channel              channel of the subscription
ARGV[2]   number               larger than the numbers of earlier calls
Returns   {number of connections that receive the number, and for each slot the hand-overs for which
          its credit was still good}; 0 connections: none listens there, or the PUBLISH was refused
Cost      O(s), s = slots, at most 1024
Atomic    A second run finds no credit, and publishes the number again. Works while Redis is at
          maxmemory.
]]
--- @keys slot ...
--- @include "lib/check"
--- @include "lib/wake/credits"
local number = whole_number(ARGV[2], 1, EXACT_MOST, 'number')
if #all_keys > SLOTS_MOST or not string.find(ARGV[1], '^[^ ;]+$') then
  fail('ARG', 'channel')
end
local reply = { 0 }
for i = 1, #all_keys do
  redis.call('HLEN', all_keys[i])
end
for i = 1, #all_keys do
  slot = all_keys[i]
  reply[1 + i] = remove_credit(ARGV[1])
end
local sent = publish_own(ARGV[1], string.format('%.0f', number))
reply[1] = sent
return reply
