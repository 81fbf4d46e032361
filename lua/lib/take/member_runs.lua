--[[
The members of a take as runs. The members of one `send_many` are a run (lib/send/run_members), and
a take of a batch usually has one run or a few. A run needs 15 bytes, however long it is, while each
member of a list needs 13. The append-only file has these bytes for each take.
]]
--- @include "lib/member"
local RUN = 15 -- bytes of a run: the first member, and the number of members in two bytes
local FEW_RUNS, EACH_RUN = 3, 8 -- a take may have FEW_RUNS runs, and one more for EACH_RUN members

-- Return members as runs, in this order; nil if the runs are short. The members of a run differ
-- only in the eighth byte, which counts.
--- @inline
local function member_runs(ids, count)
  local runs, i, char = {}, 1, string.char
  while i <= count and #runs < FEW_RUNS + i / EACH_RUN do
    local first, length = ids[i], 1
    local low, stem, tail = string.byte(first, 8), string.sub(first, 1, 7), string.sub(first, 9)
    -- A run ends at the byte 255, which is followed by another stem.
    while low < 255 and ids[i + length] == stem .. char(low + 1) .. tail do
      low, length = low + 1, length + 1
    end
    runs[#runs + 1] = first .. struct.pack('>I2', length)
    i = i + length
  end
  local is_shorter = i > count and #runs * RUN < count * MEMBER
  return is_shorter and table.concat(runs) or nil
end

-- Return the members of runs as one text.
--- @inline
local function members_of_runs(runs)
  local members = {}
  for at = 1, #runs, RUN do
    local stem, low = string.sub(runs, at, at + 6), string.byte(runs, at + 7)
    local tail, length = string.sub(runs, at + 8, at + 12), struct.unpack('>I2', runs, at + 13)
    for number = low, low + length - 1 do
      members[#members + 1] = stem .. string.char(number) .. tail
    end
  end
  return table.concat(members)
end
