-- One decision over several keys: all are read and checked first, and written last.
local PEEK, KEEP, OPEN = $PEEK, $KEEP, $OPEN

-- A shared call has no count, and nothing that counts by a calendar.
local outside = count > 0 and readDates($HEAD_SIZE + 1 + $CHARGE_SIZE * count)
local states = {}

local function begin(k)
  local s, code, text = load(k)
  if code then return nil, code, text end
  s = s or { gen = salt, changes = 0, last = reading, at = reading, n = 0, m = 0, newest = 0, ats = {}, costs = {}, openFroms = {}, openLeasts = {} }
  states[k] = s
  return s
end

local function asked(i)
  local q = {}
  local pos = $HEAD_SIZE + 1 + $CHARGE_SIZE * (i - 1)
  local how
  q.key, how, q.kind, q.units, q.per = unpack('>BBBI7I7', ask, pos)
  q.cost, q.ahead, q.cap, q.since = unpack('>I7I7I7I7', ask, pos + $CHARGE_COST)
  q.shadow = how == $SHADOW
  q.debt = algorithms[q.kind].debt(q)
  return q
end

-- place returns nil if a cost can be booked so that it can be given back. Else it returns when a booking has passed.
local function place(q, s)
  if q.kind == LOG then
    if #s.ats >= q.cap + $MAX_QUEUED then return s.ats[1] + q.per end
  elseif s.base and #s.bookedAts >= $MAX_BOOKED and s.bookedAts[#s.bookedAts] ~= q.at then
    return s.bookedAts[1]
  end
end

-- weigh finds out when a cost is spent, and whether that is in time.
local function weigh(q, s)
  local a = algorithms[q.kind]
  s.now = max(reading, s.last)
  if not s.kind then s.kind, s.units, s.per = q.kind, q.units, q.per end
  adopt(s, q, s.now)
  if q.kind == LEAKY or q.kind == LOG then a.advance(q, s, s.now) end
  q.at = s.now
  local retry = reading
  if q.cost > 0 then
    q.at = a.earliest(q, s, s.now, q.cost)
    if q.kind == LEAKY then
      if q.at > s.now then retry = q.at end
      q.at = leaves(q, s, s.now)
    end
    if q.at > s.now and q.ahead < MOST then retry = max(retry, q.at - q.ahead) end
  end
  if q.kind == CALENDAR and q.at > s.now then
    -- No further than the next window is booked: of those behind it the call says nothing.
    local boundary = micros(dates[q.per].to)
    if q.at > boundary then retry = max(retry, boundary) end
  end
  q.allowed = retry <= reading
  if q.allowed and q.at > s.now then
    q.place = place(q, s)
    q.allowed = not q.place
  end
  if q.kind == LOG then
    q.digest = pack('>I3BI7I7I7I7I7I7', s.gen, s.changes, s.now, q.at, log.counts(q, s, s.now), log.newest(q, s), 0, 0)
  else
    q.digest = pack('>I3BI7I7I7I7I7I7', s.gen, s.changes, s.now, s.at, s.n, s.m, s.newest, 0)
  end
  return q.allowed
end

local function spend(q, s)
  if q.cost == 0 then return end
  s.last, s.dirty = s.now, true
  local a = algorithms[q.kind]
  local open = op == OPEN and q.kind == TOKEN
  if q.at > s.now and (op == KEEP or op == OPEN or s.base) and q.kind ~= LOG and q.kind ~= LEAKY then
    return book(a, q, s, q.at, q.cost, open)
  end
  if q.kind == TOKEN then sample(s, q.at, (owed(s, q.at))) end
  a.spend(q, s, q.at, q.cost)
  if open then opened(s, q.at) end
end

-- decide decides on what is asked from first to last, and returns the answer.
local function decide(first, last)
  if outside then return elsewhere() end
  local asks, allowed = {}, true
  states = {}
  for i = first, last do
    local q = asked(i)
    asks[i] = q
    if not q.shadow then
      local s, code, text = begin(q.key)
      if not s then return failure(i - first + 1, code, text) end
      allowed = weigh(q, s) and allowed
    end
  end
  if allowed and op ~= PEEK then
    for i = first, last do
      local q = asks[i]
      if not q.shadow then spend(q, states[q.key]) end
    end
  end
  local parts = { pack('>BI7', allowed and 1 or 0, reading) }
  for i = first, last do
    local q = asks[i]
    if q.shadow then
      local s, code, text = states[q.key], nil, nil
      if not s then s, code, text = begin(q.key) end
      if not s then
        parts[i - first + 2] = pack('>B', code) .. string.rep('\0', $DIGEST_SIZE - 1)
      else
        if weigh(q, s) and allowed and op ~= PEEK then spend(q, s) end
      end
    end
    if q.place then -- only a decision on one key books ahead
      parts[i - first + 2] = pack('>B', $FULL) .. q.digest .. pack('>I7', q.place)
    elseif q.digest then
      parts[i - first + 2] = pack('>B', q.allowed and 1 or 0) .. q.digest
    end
  end
  for k, s in pairs(states) do
    if s.dirty then
      save(KEYS[k], s, reading, grace)
    elseif s.carried and op ~= PEEK then
      prolong(KEYS[k], s, reading, grace)
    end
  end
  return table.concat(parts)
end
