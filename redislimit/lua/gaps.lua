-- Room before bookings. Bookings are made one behind the other, so a cost queues behind the last one.
-- Once the limit has changed they are loose: each keeps its instant, although it may need only a part
-- of the units regained until then. A cost goes before loose bookings at the first instant when it
-- fits, and when each booking still fits at its own. internal/meter/gaps.go gives the reasons.

local function copied(s) return { at = s.at, n = s.n, m = s.m, newest = 0 } end

-- barred returns the number of the last booking that does not fit at its own instant, or 0. No
-- cost fits before such a booking. The result holds until a booking or the limit changes: a cost
-- that leaves all bookings in place bars none. The state stores only whether the result is 0.
local function barred(a, f, s)
  if s.bar then return s.bar end
  local c, bar = copied(s.base), 0
  for i, at in ipairs(s.bookedAts) do
    local cost = s.bookedCosts[i]
    if cost > f.cap or a.earliest(f, c, at, cost) > at then bar = i end
    a.spend(f, c, at, cost)
  end
  s.bar = bar
  return bar
end

-- harmless reports whether the bookings from the i-th on still fit after a cost. The cost fits into the state at an instant
-- before them. A booking that would begin a window must not fall into a window already begun. After s.looks bookings
-- harmless reports that there is no room. It sets s.merged if the cost makes no difference after some of the bookings.
local function harmless(a, f, s, st, at, cost, i)
  s.merged = false
  local begins, with, open = f.kind == FIXED or f.kind == COUNTER, copied(st), false
  st = copied(st)
  if begins then
    a.advance(f, st, at)
    open = a.regained(f, st) > at
  end
  a.spend(f, with, at, cost)
  for j = i, #s.bookedAts do
    local booked, part = s.bookedAts[j], s.bookedCosts[j]
    s.looks = s.looks - 1
    if s.looks < 0 or part > f.cap or a.earliest(f, with, booked, part) > booked then return false end
    if begins then
      a.advance(f, st, booked)
      a.advance(f, with, booked)
      local same = st.at == with.at and st.n == with.n and st.m == with.m
      if not same and st.n == 0 and st.m == 0 and not (open and with.at == booked) then return false end
    end
    a.spend(f, st, booked, part)
    a.spend(f, with, booked, part)
    if st.at == with.at and st.n == with.n and st.m == with.m then
      s.merged = true
      return true
    end
  end
  return true
end

-- afterDebt returns a copy of a log's state at the instant of the debt's last part.
local function afterDebt(f, s)
  local c = { at = s.at, n = s.n, m = s.m, ats = {}, costs = {}, looks = s.looks }
  for i = 1, #s.ats do c.ats[i], c.costs[i] = s.ats[i], s.costs[i] end
  log.advance(f, c, (lastDebt(f, s)))
  return c
end

-- gapOfLog returns the first instant when a cost fits beside the entries before it, and
-- leaves room for all entries after it. Nothing goes before the last part of a debt.
local function gapOfLog(f, s, now, cost)
  if s.n > 0 then now, s = max(now, (lastDebt(f, s))), afterDebt(f, s) end
  local ats, costs, room, at = s.ats, s.costs, f.units - cost, now
  local upto, k = { [0] = 0 }, #ats
  for i = 1, k do upto[i] = upto[i - 1] + costs[i] end
  local first, last, old = 1, 0, 1 -- the entries from first on are later, entries before old do not count, last is within a window
  while true do
    while ats[first] and ats[first] <= at do first = first + 1 end
    while ats[old] and ats[old] <= at - f.per do old = old + 1 end
    if upto[first - 1] - upto[old - 1] > room then -- the oldest leaves first
      at = ats[old] + f.per
    else
      while ats[last + 1] and ats[last + 1] < at + f.per do last = last + 1 end
      -- The cost goes behind the last entry that leaves it no room.
      local full, from = 0, old
      for i = first, last do
        while ats[from] <= ats[i] - f.per do from = from + 1 end
        if upto[i] - upto[from - 1] > room then full = i end
      end
      s.looks = s.looks - (last - first + 1)
      if full == 0 then return at end
      if s.looks < 0 then return log.earliest(f, s, now, cost) end
      at = ats[full] + 1
    end
  end
end

-- first returns the first instant when a cost fits, whether that is before
-- bookings, and whether the cost makes no difference after some of them.
local function first(a, f, s, now, cost)
  if not s.loose then return a.earliest(f, s, now, cost), false end
  s.looks = $LOOKS
  if s.kind == LOG then
    local at = gapOfLog(f, s, now, cost)
    return at, at < newestEntry(s)
  end
  local st, from, bar = copied(s.base), now, barred(a, f, s)
  if bar == #s.bookedAts then return a.earliest(f, s, now, cost), false end
  for i, booked in ipairs(s.bookedAts) do
    if i > bar then
      local at = a.earliest(f, copied(st), from, cost)
      if at < booked and harmless(a, f, s, st, at, cost, i) then return at, true, s.merged end
    end
    a.spend(f, st, booked, s.bookedCosts[i])
    from = booked
  end
  return a.earliest(f, s, now, cost), false
end

-- most returns the largest cost that fits now before the bookings, or 0. All bookings fit at their instants.
local function most(a, f, s, now)
  s.looks = $LOOKS
  local function fits(n)
    return a.earliest(f, copied(s.base), now, n) <= now and harmless(a, f, s, s.base, now, n, 1)
  end
  if not fits(1) then return 0 end
  local yes, no = 1, f.cap + 1
  while no - yes > 1 do
    local mid = math.floor((yes + no) / 2)
    if fits(mid) then yes = mid else no = mid end
  end
  return yes
end

-- mostOfLog returns the largest cost that fits now in a log, or 0, and the debt.
local function mostOfLog(f, s, now)
  local n, debt, from, sum, all = f.units, 0, 1, 0, false
  for i, at in ipairs(s.ats) do
    while s.ats[from] <= at - f.per do
      sum, from = sum - s.costs[from], from + 1
    end
    sum = sum + s.costs[i]
    if at <= now then
      debt = debt + (at > now - f.per and s.costs[i] or 0)
      n = f.units - debt
    else
      if at < now + f.per then n = min(n, f.units - sum) end
      all = all or sum > f.units -- then all count
    end
  end
  if n > 0 then return n, 0 end
  return 0, max(0, (all and log.spent(f, s, now) or debt) - f.units)
end

-- among returns the largest cost that fits now before loose bookings, or 0, and the debt. Bookings
-- are not a debt if they fit at their instants. It returns nil if the bookings count as not loose.
local function among(a, f, s, now)
  if s.kind == LOG and s.n > 0 or s.base and barred(a, f, s) > 0 then return nil end
  if s.kind == LOG then return mostOfLog(f, s, now) end
  local n = most(a, f, s, now)
  return n, n > 0 and 0 or max(0, a.spent(f, copied(s.base), now) - f.cap)
end

-- report returns the standing of a key with loose bookings after the decision: the instant
-- when the cost is spent, or 0 if other keys determine it; the remaining budget, TOP if
-- other keys determine it; the debt; and the instant of the next unit if none remains.
local function report(i, q, s)
  local a = algorithms[q.kind]
  local left, debt = among(a, q, s, s.now)
  local at, between = q.at, q.between
  if q.allowed or q.cost ~= 1 then at, between = first(a, q, s, s.now, 1) end -- for any other cost it is known
  if not between and q.kind ~= LOG then at = 0 end
  return pack('>BI7I7I7I7', i, (q.allowed or q.between) and q.at or 0, left or TOP, debt or 0, at)
end
