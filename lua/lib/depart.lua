--- @include "lib/number"
--- @include "lib/account"
-- depart: messages leave an audited slot for good, and their numbers are accounted for. `numbers` is what
-- numbers_in or numbers_at found, `what` the counter of the slot that tells of it. Its first write needs no
-- memory, so it may come before the messages are removed.
--
-- numbers_in: those of a list, each read by `read`, and added to `numbers`.
local function numbers_in(list, read, numbers)
  for i = 1, #list do
    local producer, number = read(list[i])
    if producer then
      if not numbers[producer] then
        numbers[producer] = {}
        numbers[#numbers + 1] = producer
      end
      table.insert(numbers[producer], number)
    end
  end
  return numbers
end

-- numbers_at: those of records that are read here, as many at a time as 16 MiB hold.
local function numbers_at(records, ids, chunk)
  local numbers = {}
  for from = 1, #ids, chunk do
    local found = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + chunk - 1)))
    numbers_in(found, number_of, numbers)
  end
  return numbers
end

local function depart(slot, audit, what, numbers, now)
  local taken = 0
  redis.call('ZCARD', audit) -- notices a wrong type, whether anything is numbered or not
  for p = 1, #numbers do
    local mine, first = numbers[numbers[p]], 1
    table.sort(mine)
    for i = 1, #mine do
      if i == #mine or mine[i + 1] > mine[i] + 1 then
        taken = taken + account(audit, numbers[p], mine[first], mine[i], now)
        first = i + 1
      end
    end
  end
  if taken > 0 then
    redis.call('HINCRBY', slot, what, taken)
  end
end
