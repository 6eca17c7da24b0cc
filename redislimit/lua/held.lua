-- Units in use. Each reservation has a record: the instant when its hold began, its units and its owner. The records
-- (s.records) are in the order of the instants, and have s.m units in all. They stay packed, so a call takes little
-- time even with thousands of records. An owner is a random number of the caller: with it the caller finds its units
-- even if it does not know whether its last extension arrived. An adjustment's units have the owner 0.
local held = {}

-- cut removes the bytes from i to j of the records.
local function cut(s, i, j) s.records = string.sub(s.records, 1, i - 1) .. string.sub(s.records, j + 1) end

function held.advance(f, s, now)
  local records, pos = s.records, 1
  while pos < #records do
    local at, cost = struct.unpack('>I7I7', records, pos)
    if at > now - f.per then break end
    s.m, pos = s.m - cost, pos + $RECORD_SIZE
  end
  if pos > 1 then s.records = string.sub(records, pos) end
end

-- earliest returns now if a cost fits, and otherwise any later instant: the caller estimates the real one.
function held.earliest(f, s, now, cost)
  if s.m + cost <= f.units then return now end
  return now + f.per
end

function held.spend(f, s, at, cost)
  s.records, s.m = s.records .. struct.pack('>I7I7I7', at, cost, f.owner or 0), s.m + cost
end

function held.charge(f, s, now, n)
  held.advance(f, s, now)
  held.spend(f, s, now, n)
end

-- forgive takes from the newest units.
function held.forgive(f, s, now, n)
  held.advance(f, s, now)
  while n > 0 and s.records ~= '' do
    local last = #s.records - $RECORD_SIZE + 1
    local at, cost, owner = struct.unpack('>I7I7I7', s.records, last)
    cut(s, last, #s.records)
    local off = min(n, cost)
    s.m, n = s.m - cost, n - off
    if cost > off then held.spend({ owner = owner }, s, at, cost - off) end
  end
end

-- release removes an owner's record, and returns its units, 0 if they have lapsed.
local function release(f, s, now, owner)
  held.advance(f, s, now)
  local mark, from = struct.pack('>I7', owner), 1
  while true do
    local i = string.find(s.records, mark, from, true)
    if not i then return 0 end
    local first = i - $RECORD_SIZE + 7
    if (first - 1) % $RECORD_SIZE == 0 then
      local _, n = struct.unpack('>I7I7', s.records, first)
      cut(s, first, first + $RECORD_SIZE - 1)
      s.m = s.m - n
      return n
    end
    from = i + 1
  end
end

function held.refund(f, s, now, sp) release(f, s, now, sp.part) end

-- extend restarts the hold of an owner's units, and returns their number.
function held.extend(f, s, now, owner)
  local n = release(f, s, now, owner)
  if n > 0 then held.spend({ owner = owner }, s, now, n) end
  return n
end

-- ages returns the sum of all units' ages. The caller estimates from it
-- when some come back. If there are many records, ages reads a sample.
function held.ages(s, now)
  if s.m == 0 then return 0 end
  local size, sum, weight = #s.records / $RECORD_SIZE, 0, 0
  for i = 0, size - 1, 1 + math.floor((size - 1) / 64) do
    local at, cost = struct.unpack('>I7I7', s.records, $RECORD_SIZE * i + 1)
    sum, weight = sum + (now - at) * cost, weight + cost
  end
  if weight < s.m then sum = math.floor(sum / weight * s.m) end
  return min(sum, TOP)
end

function held.regained(f, s)
  if s.records == '' then return 0 end
  return struct.unpack('>I7', s.records, #s.records - $RECORD_SIZE + 1) + f.per
end

function held.spent(f, s, now)
  held.advance(f, s, now)
  return s.m
end

held.debt = fixed.debt
