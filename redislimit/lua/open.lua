-- The open reservations of a token bucket. Their real costs are not known yet. A settlement gives back at most
-- the least debt since the reservation, and lowers the others' least debts: internal/meter/open.go gives the
-- reason. An element is the oldest instant of one or more reservations, and their least debt in whole µs,
-- rounded down; TOP if there was no sample yet. Elements are dropped when the debt is paid. Under a lowered
-- limit, the debt includes the units set aside. Reservations from before the change give these back first, and
-- later reservations give back less by as much. The first s.older elements are from before the last change.

-- less returns a − b, rounded down, but at least 0.
local function less(f, u, p, bu, bp)
  u, p = u - bu, p - bp
  if p < 0 then u, p = u - 1, p + f.units end
  if u < 0 then return 0, 0 end
  return u, p
end

-- drop removes the elements from i to j.
local function drop(s, i, j)
  for _ = i, j do
    table.remove(s.openFroms, i)
    table.remove(s.openLeasts, i)
  end
  s.older = s.older - max(0, min(j, s.older) - i + 1)
end

-- dropPaid drops the oldest elements with nothing left to give back.
local function dropPaid(s, now)
  local k = 0
  while s.openLeasts[k + 1] == 0 and s.openFroms[k + 1] < now do k = k + 1 end
  drop(s, 1, k)
end

-- total returns a token bucket's debt at an instant, including the units set aside.
-- Once these have lapsed, their old limit has regained all spending under it.
local function total(s, base, at)
  local u, p = owed(base, at)
  if s.aside == 0 then return u, p end
  local au, ap = price(s, s.aside)
  if s.lapses > at then
    u, p = u + au, p + ap
    if p >= s.units then u, p = u + 1, p - s.units end
    return u, p
  end
  s.aside, s.lapses = 0, 0
  drop(s, 1, s.older)
  for i, least in ipairs(s.openLeasts) do
    if least < TOP then s.openLeasts[i] = less(s, least, 0, au, ap) end
  end
  dropPaid(s, at)
  return u, p
end

-- lower lowers the oldest n least debts to at most u, and joins neighbours with the same least debt.
local function lower(s, n, u)
  if u == 0 then return drop(s, 1, n) end
  local leasts = s.openLeasts
  for i = n, 1, -1 do
    if leasts[i] > u then leasts[i] = u end
    if i < n and i ~= s.older and leasts[i] == leasts[i + 1] then
      drop(s, i + 1, i + 1)
      n = n - 1
    end
  end
end

-- sample records the debt just before a spending. Within an instant nothing is regained.
local function sample(s, at, u)
  local n = #s.openFroms
  if n > 0 and s.openFroms[n] == at then n = n - 1 end
  lower(s, n, u)
end

-- sunk records a debt lowered by a grant, also for reservations at the grant's instant. These stay even if they
-- can give back nothing: later reservations at this instant share their element, and must give back no more.
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
  -- two neighbours with the most similar least debts become one, or
  -- the oldest is dropped if it gives back less than their difference
  if n == $MAX_OPENS then
    local best, least = 1, leasts[1]
    for i = 2, n do
      local d = math.abs(leasts[i] - leasts[i - 1])
      if d < least and i - 1 ~= s.older then best, least = i, d end
    end
    if best > 1 then leasts[best - 1] = min(leasts[best - 1], leasts[best]) end
    drop(s, best, best)
  end
  froms[#froms + 1], leasts[#leasts + 1] = at, TOP
end

-- gaveBack lowers the least debts from the i-th on. They include a spending of which u was given back.
local function gaveBack(s, i, now, u)
  local froms, leasts = s.openFroms, s.openLeasts
  if not froms[i] then return end
  for k = i, #froms do
    if leasts[k] < TOP then leasts[k] = max(0, leasts[k] - u) end
  end
  if leasts[i] < TOP then lower(s, froms[i] == now and i - 1 or i, leasts[i]) end
end

-- settleBooked settles a spending without an open reservation. It gives back the part not regained. Without the spending,
-- the debt would still have been at least the debt sampled just before it, so earlier reservations keep their least debts.
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

-- settleOpen gives back the difference as if the spending's real cost had been charged at the beginning. If the spending is
-- from before the last change, it first gives back units set aside: with the real cost, fewer would have been set aside.
local function settleOpen(f, s, now, sp, actual)
  local froms, leasts, base = s.openFroms, s.openLeasts, s.base or s
  local ou, op = total(s, base, now)
  local i = #froms
  while i > 0 and froms[i] > sp.at do i = i - 1 end
  if i == 0 then return end -- all the spending is regained
  if leasts[i] <= ou then ou, op = leasts[i], 0 end
  if s.aside > 0 and not sp.changed then ou, op = less(f, ou, op, price(f, s.aside)) end
  local u, p = price(f, sp.cost - actual)
  if ou < u or ou == u and op < p then u, p = ou, op end
  if u == 0 and p == 0 then return end
  local cu, cp = u, p -- the part that counts
  if s.aside > 0 and sp.changed then
    local n = min((worth(f, u, p)), s.aside)
    s.aside = s.aside - n
    cu, cp = less(f, u, p, price(f, n))
  end
  regain(f, base, now, cu, cp)
  if p > 0 then u = u + 1 end
  gaveBack(s, i, now, u)
end
