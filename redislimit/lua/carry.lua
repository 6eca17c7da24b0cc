-- A limit that changed: what was spent stays spent, exactly where the new figures can
-- express it, else rounded up. Bookings keep their instants, but are not told apart any
-- more.
--
-- A denial writes nothing, so the calls that follow it carry the same stored state over
-- again. All do it as of one instant, f.since or the state's last reading, and so come to
-- the same result: what one has answered holds for the next.

-- convert makes what is owed to one bucket owed to another: as many units, and as
-- much of one.
local function convert(from, to, s, now)
  if from.units == to.units and from.per == to.per then return end
  local n, rem = worth(from, owed(s, now))
  local part, left = muldiv(rem, to.per, from.per)
  if left > 0 then part = part + 1 end
  local u, p = price(to, n)
  local more, frac = divide(part + p, to.units)
  u = u + more
  if u >= CENTURY then u, frac = CENTURY, 0 end
  s.at, s.n = now + u, frac
end

-- across carries over to another algorithm what is spent, in sum.
local function across(from, to, s, now, ahead)
  local n = min(algorithms[from.kind].spent(from, s, now), to.debt)
  s.at, s.n, s.m, s.ats, s.costs = now, 0, 0, {}, {}
  if n == 0 then return end
  if to.kind == LOG then now = max(now, ahead) end
  algorithms[to.kind].charge(to, s, now, n)
end

-- aged puts a window under a shorter one. Until now the key has regained by the old limit, so the shorter windows that
-- fit into the time before have regained nothing of a debt.
local function aged(from, to, s, now)
  local k = divide(now - s.at, to.per)
  if k <= 0 or s.n <= from.units then return end
  s.at, s.n, s.m = s.at + k * to.per, s.n - from.units, 0
  if k == 1 and to.kind == COUNTER then s.m = min(from.units, to.units) end
end

local function carrySpent(from, to, s, now, ahead)
  algorithms[from.kind].advance(from, s, now)
  if from.kind <= LEAKY and to.kind <= LEAKY then return convert(from, to, s, now) end
  if from.kind == LOG and to.kind == LOG then
    log.replace(to, s, now)
    s.n = min(s.n, to.debt)
  elseif from.kind == CALENDAR and to.kind == CALENDAR and to.per == from.per then
    s.n = min(s.n, to.debt)
  elseif from.kind == CALENDAR or to.kind == CALENDAR then
    across(from, to, s, now, ahead)
  elseif from.kind == COUNTER and to.kind == COUNTER and to.per >= from.per or from.kind == FIXED and to.kind == FIXED then
    aged(from, to, s, now)
    s.n = min(s.n, to.debt)
  elseif from.kind == COUNTER and to.kind == COUNTER then
    -- A shorter window must not leave more: it begins anew, with all that counts.
    s.n = min(counter.spent(from, s, now), to.debt)
    s.at, s.m = now, 0
  elseif from.kind ~= LOG and from.kind >= FIXED and to.kind ~= LOG and to.kind >= FIXED then
    s.n, s.m = min(algorithms[from.kind].spent(from, s, now), to.debt), 0
    aged(from, to, s, now)
  else
    across(from, to, s, now, ahead)
  end
end

local function same(s, f) return s.kind == f.kind and s.units == f.units and s.per == f.per end

-- carry puts a state under other figures, as of an instant.
local function carry(s, f, at)
  popDue(s, at)
  local from, ahead = figures(s.kind, s.units, s.per), s.newest
  if s.kind == LOG then ahead = newestEntry(s) end
  unbook(s)
  s.openFroms, s.openLeasts = {}, {} -- by other figures nothing is given back
  carrySpent(from, f, s, at, ahead)
  s.kind, s.units, s.per, s.changes = f.kind, f.units, f.per, (s.changes + 1) % 256
  if ahead > at and f.kind ~= LOG and f.kind ~= LEAKY then
    s.base = { at = s.at, n = s.n, m = s.m, newest = 0 }
    s.ahead, s.bookedAts, s.bookedCosts, s.bookedOpens, s.newest = ahead, {}, {}, {}, ahead
  end
end

-- adopt brings a state up to date under the figures of a call. With a since of 0, which
-- is that of a limit's first call, the old figures hold until now.
local function adopt(s, f, now)
  if not same(s, f) then
    local at = now
    if f.since > 0 then at = min(now, max(s.last, f.since)) end
    carry(s, f, at)
    s.carried = true
  end
  popDue(s, now)
end
