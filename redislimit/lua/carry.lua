-- A changed limit. Spending stays: exactly where the new figures can express it, and otherwise rounded up.
-- Bookings keep their instants: they are removed before the spending is carried over, and booked again afterwards.
--
-- A denial writes nothing, so the calls after it carry the same stored state over again. All use the same instant,
-- f.since or the state's last reading, and so come to the same result: the reply of one call also holds for the next.

-- worthOf converts a bucket's span to another bucket: both regain the same number of units
-- in it, and the same fraction of a unit. It rounds up if up is 1, and down if up is 0.
local function worthOf(from, to, u, p, up)
  local n, rem = worth(from, u, p)
  local part, left = muldiv(rem, to.per, from.per)
  if left > 0 then part = part + up end
  u, p = price(to, n)
  local more, frac = divide(part + p, to.units)
  return u + more, frac
end

-- convert converts a debt in one bucket to another.
local function convert(from, to, s, now)
  if from.units == to.units and from.per == to.per then return end
  local ou, op = owed(s, now)
  local u, frac = worthOf(from, to, ou, op, 1)
  if u >= CENTURY then u, frac = CENTURY, 0 end
  s.at, s.n = now + u, frac
end

-- across carries the sum of the spending over to another algorithm.
local function across(from, to, s, now)
  local n = min(algorithms[from.kind].spent(from, s, now), to.debt)
  s.at, s.n, s.m, s.ats, s.costs = now, 0, 0, {}, {}
  if n == 0 then return end
  algorithms[to.kind].charge(to, s, now, n)
end

-- aged puts a window under a shorter one. Until now the key has regained by
-- the old limit, so earlier shorter windows have regained nothing of a debt.
local function aged(from, to, s, now)
  local k = divide(now - s.at, to.per)
  if k <= 0 or s.n <= from.units then return end
  s.at, s.n, s.m = s.at + k * to.per, s.n - from.units, 0
  if k == 1 and to.kind == COUNTER then s.m = min(from.units, to.units) end
end

local function carrySpent(from, to, s, now)
  algorithms[from.kind].advance(from, s, now)
  if from.kind <= LEAKY and to.kind <= LEAKY then return convert(from, to, s, now) end
  if from.kind == CALENDAR and to.kind == CALENDAR and to.per == from.per then
    s.n = min(s.n, to.debt)
  elseif from.kind == CALENDAR or to.kind == CALENDAR then
    across(from, to, s, now)
  elseif from.kind == COUNTER and to.kind == COUNTER and to.per >= from.per or from.kind == FIXED and to.kind == FIXED then
    aged(from, to, s, now)
    s.n = min(s.n, to.debt)
  elseif from.kind == COUNTER and to.kind == COUNTER then
    -- A shorter window must not leave more. So it begins now, with all that counts.
    s.n = min(counter.spent(from, s, now), to.debt)
    s.at, s.m = now, 0
  elseif from.kind ~= LOG and from.kind >= FIXED and to.kind ~= LOG and to.kind >= FIXED then
    s.n, s.m = min(algorithms[from.kind].spent(from, s, now), to.debt), 0
    aged(from, to, s, now)
  else
    across(from, to, s, now)
  end
end

-- leave returns the spending by now under the limit that a key leaves, and the debt: the excess over the capacity.
local function leave(from, s, now)
  local a, x = algorithms[from.kind], { base = without(s, now), aside = s.aside, lapses = s.lapses }
  a.advance(from, x.base, now)
  x.spent = a.spent(from, x.base, now)
  x.debt = from.cap and max(0, x.spent - from.cap) or 0
  return x
end

-- lapsing returns the instant when all but the debt would have been regained.
local function lapsing(from, x, now)
  local a = algorithms[from.kind]
  if x.debt > 0 then a.forgive(from, x.base, now, x.debt) end
  return max(a.regained(from, x.base), x.lapses)
end

-- lowered makes a state without later bookings count at most the capacity and the debt. It sets the rest aside until
-- the old limit would have regained it. Units set aside before count first. internal/meter/rest.go gives the reason.
local function lowered(f, s, now, from, x)
  local a = algorithms[f.kind]
  local counted, total, most = a.spent(f, s, now), x.spent + x.aside, f.cap + x.debt
  local n = min(total, most, f.debt) - counted
  if n > 0 and x.aside > 0 then
    a.charge(f, s, now, min(n, x.aside))
  elseif counted > most then
    a.forgive(f, s, now, counted - most)
  end
  s.aside, s.lapses = 0, 0
  if total <= most then return end
  local rest, at = min(total - a.spent(f, s, now), MOST), lapsing(from, x, now)
  if rest > 0 and at > now then s.aside, s.lapses = rest, min(at, TOP) end
end

-- lapse drops the units set aside once their old limit would have regained them. Without such units it clears the instant.
local function lapse(s, now)
  if s.kind == TOKEN then total(s, s.base or s, now) end
  if s.lapses <= now or s.aside == 0 then
    s.aside, s.lapses, s.oldPer = 0, 0, nil
  elseif s.oldPer then
    lapseOlder(s, now)
  end
end

-- same reports whether a state is under a call's figures, as of an instant. A bucket's state stores its capacity only while the
-- debt may exceed it. If a state stores no capacity, and its debt exceeds the call's capacity, its own capacity was larger.
local function same(s, f, at)
  if s.kind ~= f.kind or s.units ~= f.units or s.per ~= f.per then return false end
  if s.kind > LEAKY then return true end
  if s.cap or s.under then return (s.cap or s.under) == f.cap end
  return not above(s, s.base or s, at, f.cap)
end

-- later removes the bookings after now. It returns their instants and
-- costs, and which of them are open. The due bookings have been popped.
local function later(s, now)
  if s.kind == LOG then return log.unbook(s, now) end
  local ats, costs, opens = s.bookedAts or {}, s.bookedCosts or {}, s.bookedOpens
  if s.base then s.at, s.n, s.m = s.base.at, s.base.n, s.base.m end
  unbook(s)
  return ats, costs, opens
end

-- rebookAll books all costs at once, and so finds the last one that does not fit at its instant.
local function rebookAll(a, f, s, ats, costs, opens, packed)
  local c, bar, none = { at = s.at, n = s.n, m = s.m, newest = 0 }, 0, {}
  s.base = { at = s.at, n = s.n, m = s.m, newest = 0 }
  for i = 1, #ats do
    local at, cost = ats[i], costs[i]
    none[i] = false
    if cost > f.cap or a.earliest(f, c, at, cost) > at then bar = i end
    a.spend(f, c, at, cost)
  end
  if f.kind == TOKEN then s.under = f.cap end
  s.bookedAts, s.bookedCosts, s.bookedOpens, s.packed, s.bar = ats, costs, opens or none, packed, bar
  s.at, s.n, s.m, s.newest = c.at, c.n, c.m, ats[#ats]
end

-- rebook books costs of another algorithm. In a log each instant keeps as much of a cost as a window holds,
-- and the excess becomes a debt. A calendar has no data about windows after the next one. So a later booking
-- goes to the end of the next window, and the windows before count as full, because nothing fits before a
-- booking. rebook reports whether it has moved one. Open bookings stay open from one token bucket to another.
local function rebook(f, s, now, ats, costs, opens, packed)
  local a, over, d, moved = algorithms[f.kind], 0, dates[f.per], false
  if #ats > 0 and f.kind ~= LOG and f.kind ~= LEAKY and f.kind ~= CALENDAR then
    rebookAll(a, f, s, ats, costs, opens, packed)
    return false
  end
  for i = 1, #ats do
    local at, cost = ats[i], costs[i]
    if f.kind == LOG then
      if cost > f.units then cost, over = f.units, over + cost - f.units end
      a.spend(f, s, at, cost)
    elseif f.kind == LEAKY then
      a.spend(f, s, at, cost)
    else
      local last = f.kind == CALENDAR and d and max(now, micros(d.next) - 1) or TOP
      if at > last then
        cost = cost + max(0, calendar.between(f, at) - calendar.spent(f, { at = s.at, n = s.n, m = s.m }, last))
        at, moved = last, true
      end
      book(a, f, s, at, cost, opens and opens[i])
    end
  end
  if over > 0 then
    over, s.n = over + s.n, 0
    s.at = log.earliest(f, s, now, min(over, f.units))
    s.n = over
  end
  return moved
end

-- reopen converts the open reservations of another token bucket with a debt of tu and tp. Their least debts
-- stay the same numbers of units. If some of these units neither count now nor are set aside, nothing is given
-- back any more. Least debts are rounded down, and to whole units if units set aside are given back first.
local function reopen(from, f, s, now, tu, tp, aside)
  local u, p = total(s, s, now)
  local wu, wp = worthOf(from, f, tu, tp, 1)
  if max(tu, u) >= CENTURY or u < wu or u == wu and p < wp then
    s.older, s.openFroms, s.openLeasts = 0, {}, {}
    return
  end
  local au, ap = price(from, aside)
  for i, least in ipairs(s.openLeasts) do
    if i > s.older and aside > 0 then
      if tu < least then u, p = tu, tp else u, p = least, 0 end -- without a sample, the least debt is the present one
      u, p = less(from, u, p, au, ap)
    else
      u, p = least, 0
    end
    if u < TOP then
      u, p = worthOf(from, f, u, p, 0)
      if s.aside > 0 then u = price(f, (worth(f, u, p))) end
      s.openLeasts[i] = u
    end
  end
  dropPaid(s, now)
  s.older = #s.openFroms
end

-- afresh makes a state fresh under another algorithm. Earlier reservations
-- then have nothing to settle, because units in use do not count as spending.
local function afresh(s, at)
  unbook(s)
  s.at, s.n, s.m, s.aside, s.lapses, s.oldPer, s.cap = at, 0, 0, 0, 0, nil, nil
  s.older, s.openFroms, s.openLeasts, s.ats, s.costs, s.records = 0, {}, {}, {}, {}, ''
  s.gen = (s.gen + 1) % $GENERATIONS
end

-- carry puts a state under other figures, as of an instant.
local function carry(s, f, at)
  s.bar = nil
  if s.kind == HELD or f.kind == HELD then
    if s.kind ~= f.kind then
      afresh(s, at)
    else
      held.advance(s, s, at)
      held.advance(f, s, at)
    end
    s.kind, s.units, s.per, s.changes = f.kind, f.units, f.per, (s.changes + 1) % 256
    return
  end
  lapse(s, at)
  local from, ats, costs, opens = figures(s.kind, s.units, s.per), nil, nil, nil
  -- open bookings are packed in another way, so a token bucket's text serves only token buckets
  local packed = s.kind ~= LOG and (s.kind ~= TOKEN or f.kind == TOKEN) and s.packed or nil
  if s.kind <= LEAKY then from.cap = s.cap or s.under end
  local x, buckets, tu, tp = leave(from, s, at), s.kind == TOKEN and f.kind == TOKEN, 0, 0
  if buckets then
    tu, tp = total(s, s.base or s, at)
  else
    s.older, s.openFroms, s.openLeasts = 0, {}, {} -- another algorithm gives nothing back
  end
  if from.kind == LOG and f.kind == LOG then
    log.between(from, f, s, at, x.debt)
  else
    ats, costs, opens = later(s, at)
    carrySpent(from, f, s, at)
    s.oldPer = nil
    lowered(f, s, at, from, x)
  end
  s.cap = f.kind <= LEAKY and f.cap or nil
  if s.kind ~= CALENDAR or f.kind ~= CALENDAR or s.per ~= f.per then -- in all other cases the windows are the same
    s.changes = (s.changes + 1) % 256
  end
  s.kind, s.units, s.per = f.kind, f.units, f.per
  if buckets and #s.openFroms > 0 then reopen(from, f, s, at, tu, tp, x.aside) end
  local moved = ats and rebook(f, s, at, ats, costs, buckets and opens, packed)
  s.loose = not moved and (s.base ~= nil or f.kind == LOG and newestEntry(s) > at)
end

-- adopt brings a state up to date under a call's figures. With a since
-- of 0, as in a limit's first call, the old figures apply until now.
local function adopt(s, f, now)
  local at = now
  if f.since > 0 then at = min(now, max(s.last, f.since)) end
  popDue(s, at)
  if not same(s, f, at) then
    s.carried = true
    -- Once a bucket's debt is at most the other capacity, its state does not show that its own was larger.
    if s.kind == f.kind and s.units == f.units and s.per == f.per then s.last, s.dirty = at, true end
    carry(s, f, at)
  end
  lapse(s, now)
  popDue(s, now)
  if s.kind == LOG and newestEntry(s) <= now then s.loose = false end
end
