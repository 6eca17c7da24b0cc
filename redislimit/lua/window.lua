-- The fixed window: s.n is the spending in the window beginning at
-- s.at. Spending above units runs over into the following windows.
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

-- booked returns the units of the booked windows before the state's.
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

-- The calendar: s.n is the spending in the window beginning at the second s.m, and ending at s.at.
-- Spending above units runs over into the following windows. Only a later window begins a new count.
--
-- Only the caller knows the calendar. For each calendar it needs, a call passes the beginnings of the previous and
-- the present window; the end of the present one, where the next one begins; the end of the next one; the mean length
-- of windows, in seconds; the number of windows in the longest debt; and the beginning and the end of the window in
-- which the limit was changed. Keys are put under the limit as of that window. Only states of long ago need other
-- instants: they use the mean. A calendar without data in the call continues with windows as long as the last one.
local calendar, dates = {}, {}

local function micros(second) return (second - $ORDINAL_ZERO) * 1000000 end

-- windowAt returns the beginning and the end of an instant's window.
local function windowAt(f, s, at)
  local d = dates[f.per]
  if d and at >= micros(d.prev) and at < micros(d.next) then
    if at < micros(d.from) then return d.prev, micros(d.from) end
    if at < micros(d.to) then return d.from, micros(d.to) end
    return d.to, micros(d.next)
  end
  if d and at >= micros(d.first) and at < micros(d.last) then return d.first, micros(d.last) end
  if s.m > 0 and at < s.at then return s.m, s.at end
  local first, length = s.at, d and d.mean * 1000000 or s.at - micros(s.m)
  if s.m == 0 then first = d and micros(d.prev) or at end
  if s.m == 0 and not d or length <= 0 then length = 86400000000 end
  local k, rest = divide(at - first, length)
  if rest < 0 then k = k - 1 end
  first = first + k * length
  return divide(first, 1000000) + $ORDINAL_ZERO, first + length
end

function calendar.roll(f, s, now)
  local from, to = windowAt(f, s, now)
  if from == s.m then s.at = to end
  if from <= s.m then return end
  if s.n > f.units then
    local d = dates[f.per]
    local mean = d and d.mean or divide(s.at, 1000000) + $ORDINAL_ZERO - s.m
    local passed = divide(from - s.m + divide(mean, 2), mean)
    if passed > divide(s.n, f.units) then s.n = 0 else s.n = s.n - passed * f.units end
  else
    s.n = 0
  end
  s.m, s.at = from, to
end

-- earliest is exact until the end of the state's window. A later cost is not booked, and the caller computes its instant.
function calendar.earliest(f, s, now, cost)
  calendar.roll(f, s, now)
  if s.n + cost <= f.units then return max(now, s.newest) end
  local k, used = divide(s.n, f.units)
  if used + cost > f.units then k = k + 1 end
  return max(s.at + (k - 1) * 86400000000, s.newest)
end

function calendar.spend(f, s, at, cost)
  calendar.roll(f, s, at)
  s.n = min(s.n + cost, f.debt)
end

calendar.charge = calendar.spend

function calendar.forgive(f, s, now, n)
  calendar.roll(f, s, now)
  s.n = max(0, s.n - n)
end

-- refund gives back a spending if it names the state's window. If the figures have
-- changed, this may be another calendar's window beginning at the same instant.
function calendar.refund(f, s, now, sp, actual)
  calendar.roll(f, s, now)
  if sp.part == s.m and not sp.changed then calendar.forgive(f, s, now, sp.cost - actual) end
end

calendar.advance = calendar.roll

-- regained returns an instant at or after the end of the last window
-- needed: a window is at most a 25th plus two hours longer than the mean.
function calendar.regained(f, s)
  if s.n == 0 then return 0 end
  local d = dates[f.per]
  local longest = d and d.mean * 1040000 + 7200000000 or 2 * (s.at - micros(s.m))
  return min(s.at + divide(s.n - 1, f.units) * longest, TOP - CENTURY)
end

-- spent counts the windows before a booked one as full.
function calendar.spent(f, s, now)
  calendar.roll(f, s, now)
  local d = dates[f.per]
  if s.base and d and s.m > d.from and now < micros(d.to) then return s.n + f.units end
  return s.n
end

-- between returns the units of the windows from the next one until an instant's window, not including it. The
-- script does not know these windows: some may be shorter than the mean, by a twelfth of one window in all.
function calendar.between(f, at)
  local d = dates[f.per]
  if at < micros(d.next) then return 0 end
  local mean = d.mean * 1000000
  return (1 + divide(at - micros(d.next) + mean / 12, mean)) * f.units
end

function calendar.debt(f)
  local windows, d = divide(MOST, f.units), dates[f.per]
  return min(windows, d and d.windows or windows) * f.units
end
