-- The token bucket counts a debt in time: s.at, with s.n as its fraction in 1/units µs, is
-- when all spending will have been regained. One unit takes per/units µs, in lowest terms.

-- price returns how long n units take to be regained, at most a century.
local function price(f, n)
  local u, p = muldiv(n, f.per, f.units)
  if u >= CENTURY then return CENTURY, 0 end
  return u, p
end

-- worth returns how many units are regained in a span, and how many parts of 1/per of a unit.
local function worth(f, u, p)
  local q, r = muldiv(u, f.units, f.per)
  local more, left = divide(r + p, f.per)
  return min(q + more, TOP), left
end

local function owed(s, now)
  if s.at < now then return 0, 0 end
  return s.at - now, s.n
end

-- above reports whether the debt is above a capacity.
local function above(f, s, now, capacity)
  local ou, op = owed(s, now)
  local fu, fp = price(f, capacity)
  return ou > fu or ou == fu and op > fp
end

-- fits returns the first instant when owed + price ≤ full, rounded up.
local function fits(f, s, now, cost)
  local u, p = s.at, s.n
  if u < now then u, p = now, 0 end
  local cu, cp = price(f, cost)
  local fu, fp = price(f, f.cap)
  u, p = u - fu + cu, p + cp - fp
  if p > f.units then u = u + 2 elseif p > 0 then u = u + 1 end
  return max(u, now)
end

-- owe adds a cost to the debt, which ends at most a century after at.
local function owe(f, s, at, cost)
  local u, p = price(f, cost)
  u, p = s.at + u, s.n + p
  if p >= f.units then u, p = u + 1, p - f.units end
  if u - at >= CENTURY then u, p = at + CENTURY, 0 end
  s.at, s.n = u, p
end

-- regain reduces the debt by a span, unless the span is negative.
local function regain(f, s, now, u, p)
  if u < 0 then return end
  local ou, op = owed(s, now)
  ou, op = ou - u, op - p
  if op < 0 then ou, op = ou - 1, op + f.units end
  if ou < 0 then ou, op = 0, 0 end
  s.at, s.n = now + ou, op
end

local token = {}

function token.earliest(f, s, now, cost) return max(fits(f, s, now, cost), s.newest) end

function token.spend(f, s, at, cost)
  if s.at < at then s.at, s.n = at, 0 end
  owe(f, s, at, cost)
end

token.charge = token.spend

-- refund gives back the difference, except the part regained since. Of the cost at most cost − rate·(now − at) is left.
function token.refund(f, s, now, sp, actual)
  local lu, lp = price(f, sp.cost)
  local bu, bp = price(f, sp.cost - actual)
  lu = lu - max(0, now - sp.at)
  if lu < bu or lu == bu and lp < bp then bu, bp = lu, lp end
  regain(f, s, now, bu, bp)
end

function token.forgive(f, s, now, n) regain(f, s, now, price(f, n)) end

function token.regained(f, s)
  if s.n > 0 then return s.at + 1 end
  return s.at
end

function token.advance(f, s, now)
  if token.regained(f, s) <= now then s.at, s.n = now, 0 end
end

function token.spent(f, s, now)
  local n, rem = worth(f, owed(s, now))
  if rem > 0 then n = n + 1 end
  return n
end

function token.debt(f)
  return min(worth(f, CENTURY, 0), MOST)
end

-- The leaky bucket counts entering costs like the token bucket. They leave when all earlier
-- costs have left. It gives back only at its queue's end, so it stores no other instant.
local leaky = {}
for k, v in pairs(token) do leaky[k] = v end

leaky.earliest = fits

-- leaves returns when a cost entering now will leave: the instant, rounded up, and its fraction before rounding.
local function leaves(f, s, now)
  local at = token.regained(f, s)
  if at <= now then return now, 0 end
  return at, s.n
end

function leaky.spend(f, s, at, cost)
  if token.regained(f, s) < at then s.at, s.n = at, 0 end
  owe(f, s, at, cost)
end

function leaky.charge(f, s, now, n)
  token.advance(f, s, now)
  owe(f, s, now, n)
end

function leaky.refund(f, s, now, sp, actual)
  local u, p = price(f, sp.cost)
  u, p = sp.at + u, sp.part + p
  if sp.part > 0 then u = u - 1 end
  if p >= f.units then u, p = u + 1, p - f.units end
  if u < s.at or u == s.at and p < s.n then return end
  token.refund(f, s, now, sp, actual)
end
