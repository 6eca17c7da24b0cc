-- Bookings. A log's bookings are spendings like others. For the token bucket and the windows, the state is always
-- base with the bookings spent on top, in order. So a booking can be given back without selling its instant twice.

-- figures returns a limit's figures for the algorithms.
local function figures(kind, units, per)
  local f = { kind = kind, units = units, per = per, cap = units }
  f.debt = algorithms[kind].debt(f)
  return f
end

local function fold(a, f, s)
  s.at, s.n, s.m = s.base.at, s.base.n, s.base.m
  for i = 1, #s.bookedAts do a.spend(f, s, s.bookedAts[i], s.bookedCosts[i]) end
  s.newest = s.bookedAts[#s.bookedAts] or 0
end

local function unbook(s)
  s.base, s.bookedAts, s.bookedCosts, s.bookedOpens, s.newest, s.loose, s.under, s.packed = nil, nil, nil, nil, 0, nil, nil, nil
end

-- popDue moves the due bookings into the base. The figures are the state's own.
local function popDue(s, now)
  if not s.base then return end
  local a, f = algorithms[s.kind], figures(s.kind, s.units, s.per)
  local ats, costs, opens, k = s.bookedAts, s.bookedCosts, s.bookedOpens, 0
  while ats[k + 1] and ats[k + 1] <= now do
    k = k + 1
    if s.kind == TOKEN then sample(s, ats[k], (total(s, s.base, ats[k]))) end
    a.spend(f, s.base, ats[k], costs[k])
    if opens[k] then opened(s, ats[k]) end
  end
  if k > 0 then
    s.bookedAts, s.bookedCosts, s.bookedOpens = {}, {}, {}
    if s.packed then s.packed = string.sub(s.packed, $BOOKING_SIZE * k + 1) end
    if s.bar then s.bar = max(0, s.bar - k) end
    for i = k + 1, #ats do
      s.bookedAts[i - k], s.bookedCosts[i - k], s.bookedOpens[i - k] = ats[i], costs[i], opens[i]
    end
  end
  if #s.bookedAts == 0 then
    s.at, s.n, s.m = s.base.at, s.base.n, s.base.m
    unbook(s)
  end
end

local function book(a, f, s, at, cost, open)
  if not s.base then
    s.base = { at = s.at, n = s.n, m = s.m, newest = 0 }
    s.bookedAts, s.bookedCosts, s.bookedOpens = {}, {}, {}
  end
  s.packed = nil
  if s.kind == TOKEN then s.under = f.cap end -- another burst makes the bookings loose
  local k = #s.bookedAts
  while k > 0 and s.bookedAts[k] > at do k = k - 1 end
  if s.bookedAts[k] == at then
    s.bookedCosts[k] = s.bookedCosts[k] + cost
    s.bookedOpens[k] = s.bookedOpens[k] or open
  else
    table.insert(s.bookedAts, k + 1, at)
    table.insert(s.bookedCosts, k + 1, cost)
    table.insert(s.bookedOpens, k + 1, open or false)
  end
  if at < s.newest then return fold(a, f, s) end
  a.spend(f, s, at, cost)
  s.newest = at
end

-- without returns a copy of a state without its later bookings. All due bookings have been popped.
local function without(s, now)
  local b = s.base or s
  local c = { at = b.at, n = b.n, m = b.m, newest = 0, ats = {}, costs = {} }
  for i = 1, s.kind == LOG and #s.ats or 0 do
    if s.ats[i] > now then
      c.m = c.m - s.costs[i]
    else
      c.ats[i], c.costs[i] = s.ats[i], s.costs[i]
    end
  end
  return c
end

-- shrink takes up to n from the i-th booking, and returns the amount.
local function shrink(s, i, n)
  n, s.packed = min(n, s.bookedCosts[i]), nil
  s.bookedCosts[i] = s.bookedCosts[i] - n
  if s.bookedCosts[i] == 0 then
    table.remove(s.bookedAts, i)
    table.remove(s.bookedCosts, i)
    table.remove(s.bookedOpens, i)
  end
  return n
end

-- reduce gives back a part of the cost booked for the given instant.
local function reduce(s, at, n)
  for i = #s.bookedAts, 1, -1 do
    if s.bookedAts[i] == at then return shrink(s, i, n) end
  end
end

-- tidy brings the state up to date after bookings or the base have shrunk.
local function tidy(a, f, s, now)
  if not s.base then return end
  fold(a, f, s)
  popDue(s, now)
end

-- charge spends n behind all bookings, as a debt if necessary.
local function charge(a, f, s, now, n)
  if s.kind <= LEAKY then s.cap = f.cap end
  local most = f.debt - a.spent(f, s, now)
  if n > most then
    n = most
    if s.kind == TOKEN then sunk(s, now, 0) end
  end
  if n <= 0 then return end
  if s.base then return book(a, f, s, s.newest, n) end
  if s.kind == TOKEN then sample(s, now, (total(s, s, now))) end
  a.charge(f, s, now, n)
end

-- forgivable returns how much a grant takes from the base before it takes from bookings. A window before bookings
-- keeps one unit: without it the window would end, and the first booking would have to begin the next one.
local function forgivable(a, f, s, now)
  local n = a.spent(f, without(s, now), now)
  if s.kind == FIXED or s.kind == COUNTER then n = max(0, n - 1) end
  return n
end

-- forgive takes n from the spending: first from the spending by now, and then from the bookings,
-- the last one first. A grant above the counted units takes the rest from the units set aside.
local function forgive(a, f, s, now, n)
  if s.aside > 0 then reduceAside(s, min(s.aside, max(0, n - a.spent(f, s, now)))) end
  local b = s.base
  if b then
    local later = n - min(n, forgivable(a, f, s, now))
    n = n - later
    while later > 0 and #s.bookedAts > 0 do later = later - shrink(s, #s.bookedAts, later) end
    n = n + later
  end
  if n > 0 then
    a.forgive(f, b or s, now, n)
    if s.kind == TOKEN then sunk(s, now, (total(s, b or s, now))) end
  end
  tidy(a, f, s, now)
end

-- fromAside gives back units set aside first, if a spending from before the
-- change of limit still counts. It returns the actual cost still to be settled.
local function fromAside(a, f, s, now, sp, actual)
  if actual >= sp.cost or sp.at > now then return actual end
  if s.oldPer then return settleOlder(f, s, now, sp, actual) end
  local base = without(s, now)
  local was = a.spent(f, base, now)
  a.refund(f, base, now, sp, actual)
  if a.spent(f, base, now) >= was then return actual end
  local off = min(sp.cost - actual, s.aside)
  s.aside = s.aside - off
  return actual + off
end

-- refund gives back the difference between the spending's cost and its real cost, if the bound allows
-- it. In a bucket whose figures have changed, it gives back only a booking or an open reservation.
local function refund(a, f, s, now, sp, actual)
  sp.changed = sp.changes ~= s.changes
  if sp.kind ~= s.kind or s.kind <= LEAKY and sp.changed and not sp.open and not (s.base and sp.at > now) then return end
  -- A calendar does not store whether other figures have set units aside since.
  -- But while units are set aside, a spending follows only after a grant.
  if (sp.changed or s.kind == CALENDAR) and s.aside > 0 and not sp.open then actual = fromAside(a, f, s, now, sp, actual) end
  if s.kind == LOG or s.kind == LEAKY or s.kind == HELD then return a.refund(f, s, now, sp, actual) end
  if sp.at > now then
    if s.base then reduce(s, sp.at, sp.cost - actual) end
  elseif sp.open then
    settleOpen(f, s, now, sp, actual)
  elseif s.kind == TOKEN then
    settleBooked(f, s, now, sp, actual)
  else
    a.refund(f, s.base or s, now, sp, actual)
  end
  tidy(a, f, s, now)
end
