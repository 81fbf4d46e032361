--[[
The deliveries of a call as runs, and the check of their receipts. ARGV has from RUNS_FROM on, for
each run: the number of its deliveries, the receipt of the first delivery, and its delivery number
(0: unknown). Receipts and delivery numbers of a run increase in steps. Then come the ids.
]]
--- @needs prepare
--- @include "lib/check"
--- @include "lib/leases/receipt"
local STEP = 0.00048828125 -- between the receipts of a run: 1 / DELIVERY_CYCLE
local RANGES_MOST = 4 -- runs that are checked by range; if there are more, scores are read

-- Return the position in ARGV of a run: its size, its first receipt and its delivery number.
--- @inline
local function place_of_run(r)
  return RUNS_FROM + 3 * (r - 1)
end

-- Count the deliveries of all runs.
--- @inline
local function count_deliveries(runs)
  local count = 0
  for r = 1, runs do
    local place = place_of_run(r)
    count = count + whole_number(ARGV[place], 1, MOST, 'run')
  end
  return count
end

-- Return whether all receipts of a run are valid. One look at the range of the receipts costs a
-- quarter of a look at each score. The function may return false for a valid run.
--
-- A run is valid if the range has exactly its ids in order. This is certain only while fewer than
-- 2048 deliveries have followed the first delivery of the run: after that, a later delivery of an
-- id can have the same receipt.
--
-- - at: position in ARGV of the first id of the run
-- - delivered: last delivery number of the slot
local function is_run_valid(r, at, delivered)
  local place = place_of_run(r)
  local size, receipt = tonumber(ARGV[place]), ARGV[place + 1]
  local delivery = whole_number(ARGV[place + 2], 0, NUMBER_MOST, 'delivery')
  local low = tonumber(receipt) or 0
  if size == 1 or delivery == 0 or delivered - delivery >= DELIVERY_CYCLE then
    return false
  end
  local last_fraction = low % 1 + (size - 1) * STEP
  if low % 1 ~= delivery % DELIVERY_CYCLE * STEP or last_fraction >= 1 then
    return false
  end
  local high = string.format('%.17g', low + (size - 1) * STEP)
  local in_range = redis.call('ZRANGEBYSCORE', prepare, receipt, high, 'LIMIT', 0, size + 1)
  for i = 1, size do
    if in_range[i] ~= ARGV[at + i - 1] then
      return false
    end
  end
  return #in_range == size
end

-- Return whether all receipts of all runs are valid. Like is_run_valid, this may return false for
-- valid runs. `from`: position in ARGV of the first id.
--- @inline
local function are_runs_valid(runs, count, from, delivered)
  local are_valid, at = runs <= RANGES_MOST and count > 1, from
  for r = 1, are_valid and runs or 0 do
    are_valid = are_valid and is_run_valid(r, at, delivered)
    local place = place_of_run(r)
    at = at + tonumber(ARGV[place])
  end
  return are_valid
end

-- Find the valid receipts, by the score of each. Return their ids, each once; a letter for every
-- delivery; and the positions of the valid ids.
--- @inline
local function find_valid(runs, count, from)
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, from + count - 1))
  local valid_ids, letters, positions, seen, i = {}, {}, {}, {}, 0
  for r = 1, runs do
    local place = place_of_run(r)
    local receipt = tonumber(ARGV[place + 1])
    for step = 0, tonumber(ARGV[place]) - 1 do
      i = i + 1
      local id, score = ARGV[from + i - 1], tonumber(scores[i])
      if score and receipt and score == receipt + step * STEP and not seen[id] then
        seen[id], letters[i] = true, '1'
        valid_ids[#valid_ids + 1], positions[#positions + 1] = id, i
      else
        letters[i] = '0'
      end
    end
  end
  return valid_ids, table.concat(letters), positions
end

-- Return the lowest and the highest receipt of valid deliveries, if the PrepareQueue has no others
-- between them; else nil.
--- @inline
local function range_of_runs(runs, count)
  local low, high = math.huge, 0
  for r = 1, runs do
    local place = place_of_run(r)
    local receipt = tonumber(ARGV[place + 1])
    low = math.min(low, receipt)
    high = math.max(high, receipt + (tonumber(ARGV[place]) - 1) * STEP)
  end
  local first, last = string.format('%.17g', low), string.format('%.17g', high)
  if redis.call('ZCOUNT', prepare, first, last) ~= count then
    return nil, nil
  end
  return first, last
end

-- Find the valid receipts. Return their ids, each once; a letter for every delivery, 1 valid or 0;
-- the positions of the valid ids, or nil if all are valid; and the lowest and the highest receipt
-- if the PrepareQueue has exactly these deliveries in this range, else nil.
--   runs: number of runs; count: number of deliveries; from: position in ARGV of the first id
--   delivered: last delivery number of the slot
--- @inline
local function verify_runs(runs, count, from, delivered)
  local are_valid, ids, letters, positions
  local low, high = nil, nil
  are_valid = are_runs_valid(runs, count, from, delivered)
  if not are_valid then
    ids, letters, positions = find_valid(runs, count, from)
  end
  if are_valid and runs == 1 then
    low = ARGV[RUNS_FROM + 1]
    high = string.format('%.17g', tonumber(low) + (count - 1) * STEP)
  elseif count > 1 and (are_valid or #ids == count) then
    low, high = range_of_runs(runs, count)
  end
  if not are_valid then
    return ids, letters, positions, low, high
  end
  return { unpack(ARGV, from, from + count - 1) }, string.rep('1', count), nil, low, high
end
