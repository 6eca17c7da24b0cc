-- The sliding counter: s.n is the spending in the window beginning at s.at. s.m is the
-- spending in the previous window. It counts by the part that still overlaps, rounded up.
local counter = {}

function counter.roll(f, s, now)
  if now - s.at < f.per then return end
  local k = divide(now - s.at, f.per)
  local past = k * f.units
  s.m = min(max(0, s.n - (past - f.units)), f.units)
  s.n = max(0, s.n - past)
  s.at = s.at + k * f.per
  if s.n == 0 and s.m == 0 then s.at = now end
end

function counter.weight(f, s, now)
  if s.m == 0 then return 0 end
  local q, r = muldiv(s.m, s.at + f.per - max(now, s.at), f.per)
  if r > 0 then q = q + 1 end
  return q
end

function counter.earliest(f, s, now, cost)
  counter.roll(f, s, now)
  local at, n, m = s.at, s.n, s.m
  if n + cost > f.units then -- the first later window with room for the cost
    local k, used = divide(n, f.units)
    m, n = f.units, used
    if used + cost > f.units then k, m, n = k + 1, used, 0 end
    at = at + k * f.per
  end
  local start, room = max(now, at), f.units - cost - n
  if room < m then -- m·(end − t)/per ≤ room, solved for t
    start = max(start, at + f.per - muldiv(room, f.per, m))
  end
  return max(start, s.newest)
end

function counter.spend(f, s, at, cost)
  counter.roll(f, s, at)
  if s.n == 0 and s.m == 0 then s.at = at end
  s.n = min(s.n + cost, f.debt)
end

counter.charge = counter.spend

function counter.refund(f, s, now, sp, actual)
  counter.roll(f, s, now)
  local back = sp.cost - actual
  if sp.at >= s.at then
    s.n = max(0, s.n - back)
  elseif sp.at >= s.at - f.per and not sp.changed then
    -- If the figures have changed, the previous window may have been shorter, and
    -- the spending may lie before it. Its refund would give others' spending back.
    s.m = max(0, s.m - back)
  end
  if s.n == 0 and s.m == 0 then s.at = now end
end

function counter.forgive(f, s, now, n)
  counter.roll(f, s, now)
  if n <= s.n then
    s.n = s.n - n
  else
    local weight = counter.weight(f, s, now) - (n - s.n)
    s.n = 0
    if weight > 0 then
      s.m = muldiv(weight, f.per, s.at + f.per - max(now, s.at))
    else
      s.m = 0
    end
  end
  if s.n == 0 and s.m == 0 then s.at = now end
end

counter.advance = counter.roll

function counter.regained(f, s)
  if s.n > 0 then return s.at + divide(s.n - 1, f.units) * f.per + 2 * f.per end
  if s.m > 0 then return s.at + f.per end
  return s.at
end

function counter.spent(f, s, now)
  counter.roll(f, s, now)
  return s.n + counter.weight(f, s, now) + booked(f, s, now)
end

counter.debt = fixed.debt
