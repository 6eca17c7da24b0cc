-- Open reservations of a token bucket, whose real cost is not known yet. To settle one gives back at most the least debt since
-- it was made, and lowers the least debts of the others: internal/meter/open.go gives the reason. An element is the oldest
-- instant of one or more reservations, and their least debt in whole µs, rounded down; TOP if there was no sample yet. Elements
-- are dropped when the debt is paid, and their least debts rise.
local function owedNow(s, now)
  local base = s.base or s
  return (owed(base, now))
end

-- lower lowers the least debts of the oldest n to at most u.
local function lower(s, n, u)
  local froms, leasts, i = s.openFroms, s.openLeasts, n
  while i > 0 and leasts[i] >= u do i = i - 1 end
  if i == n then return end
  local first = i + 1
  if u > 0 then
    leasts[first] = u
    first = first + 1
  end
  for _ = first, n do
    table.remove(froms, first)
    table.remove(leasts, first)
  end
end

-- sample records the debt just before a spending. Within an instant nothing is regained.
local function sample(s, at, u)
  local n = #s.openFroms
  if n > 0 and s.openFroms[n] == at then n = n - 1 end
  lower(s, n, u)
end

-- sunk records a debt that has become lower by a grant, also for the reservations of its instant. These stay even if they give
-- back nothing, so that later ones of the instant, which share the element, give back no more.
local function sunk(s, now, u)
  local n = #s.openFroms
  if n > 0 and s.openFroms[n] == now then
    s.openLeasts[n] = min(s.openLeasts[n], u)
    n = n - 1
  end
  lower(s, n, u)
end

local function opened(s, at)
  local froms, leasts = s.openFroms, s.openLeasts
  local n = #froms
  if froms[n] == at then return end
  if n == $MAX_OPENS then -- the two that differ least become one, or the oldest goes if it gives back less than that
    local best, least = 1, leasts[1]
    for i = 2, n do
      local d = leasts[i] - leasts[i - 1]
      if d < least then best, least = i, d end
    end
    table.remove(froms, best)
    table.remove(leasts, best)
  end
  froms[#froms + 1], leasts[#leasts + 1] = at, TOP
end

-- gaveBack lowers the least debts from the i-th on after u was given back of a spending of their time.
local function gaveBack(s, i, now, u)
  local froms, leasts = s.openFroms, s.openLeasts
  if not froms[i] then return end
  for k = i, #froms do
    if leasts[k] < TOP then leasts[k] = max(0, leasts[k] - u) end
  end
  if leasts[i] < TOP then lower(s, froms[i] == now and i - 1 or i, leasts[i]) end
end

-- settleBooked gives back of a spending that is not open, as far as it is not regained. Without it the debt would still have been
-- at least the one that was sampled just before it, so that earlier reservations keep their least debts.
local function settleBooked(f, s, now, sp, actual)
  local base, froms, i = s.base or s, s.openFroms, 1
  local bu, bp = owed(base, now)
  token.refund(f, base, now, sp, actual)
  local u, p = owed(base, now)
  while froms[i] and froms[i] < sp.at do i = i + 1 end
  u = bu - u
  if bp > p then u = u + 1 end
  if u > 0 then gaveBack(s, i, now, u) end
end

-- settleOpen gives back of a spending as if its real cost had been charged at the beginning.
local function settleOpen(f, s, now, sp, actual)
  local froms, leasts, base = s.openFroms, s.openLeasts, s.base or s
  local i = #froms
  while i > 0 and froms[i] > sp.at do i = i - 1 end
  if i == 0 then return end -- all of it is regained
  local ou, op = owed(base, now)
  local u, p = price(f, sp.cost - actual)
  if ou < u or ou == u and op < p then u, p = ou, op end
  if leasts[i] < u or leasts[i] == u and p > 0 then u, p = leasts[i], 0 end
  if u == 0 and p == 0 then return end
  regain(f, base, now, u, p)
  if p > 0 then u = u + 1 end
  gaveBack(s, i, now, u)
end
