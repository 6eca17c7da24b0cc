-- The fixed window: s.n spent in the window that begins at s.at. What is above units
-- runs over into the windows that follow.
local fixed = {}

function fixed.roll(f, s, now)
  if now - s.at < f.per then return end
  local k = divide(now - s.at, f.per)
  local past = k * f.units
  if s.n > past then
    s.at, s.n = s.at + k * f.per, s.n - past
  else
    s.at, s.n = now, 0
  end
end

function fixed.earliest(f, s, now, cost)
  fixed.roll(f, s, now)
  if s.n + cost <= f.units then return max(now, s.at, s.newest) end
  local k, used = divide(s.n, f.units)
  if used + cost > f.units then k = k + 1 end
  return max(s.at + k * f.per, s.newest)
end

function fixed.spend(f, s, at, cost)
  fixed.roll(f, s, at)
  if s.n == 0 then s.at = at end
  s.n = min(s.n + cost, f.debt)
end

fixed.charge = fixed.spend

function fixed.forgive(f, s, now, n)
  fixed.roll(f, s, now)
  s.n = s.n - n
  if s.n <= 0 then s.at, s.n = now, 0 end
end

function fixed.refund(f, s, now, sp, actual)
  fixed.roll(f, s, now)
  if sp.at >= s.at then fixed.forgive(f, s, now, sp.cost - actual) end
end

fixed.advance = fixed.roll

function fixed.regained(f, s)
  return s.at + divide(s.n + f.units - 1, f.units) * f.per
end

-- booked returns what the windows are worth that are booked before the state's.
local function booked(f, s, now)
  if s.at <= now then return 0 end
  return min(divide(s.at - now + f.per - 1, f.per) * f.units, MOST)
end

function fixed.spent(f, s, now)
  fixed.roll(f, s, now)
  return s.n + booked(f, s, now)
end

function fixed.debt(f)
  return min((divide(CENTURY, f.per)), (divide(MOST, f.units))) * f.units
end
