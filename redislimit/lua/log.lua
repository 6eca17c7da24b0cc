-- The sliding log has the spendings of the last window, with their instants (s.ats) and costs
-- (s.costs). s.m is the sum of the costs. A booked spending has a future instant. A debt of
-- s.n is spent in parts: units of it at s.at, and as much after each per, until it is used up.
local log = {}

-- lastDebt returns the instant and the cost of the debt's last part. Nothing
-- else fits before it, and when it is spent the earlier parts no longer count.
local function lastDebt(f, s)
  if s.n == 0 then return 0, 0 end
  local k = divide(s.n - 1, f.units)
  return s.at + k * f.per, s.n - k * f.units
end

local function newestEntry(s) return s.ats[#s.ats] or 0 end

-- freed returns the instant when at most room units of the spending count. The oldest spending leaves first.
local function freed(f, s, debtAt, debt, at, room)
  local freedAt, left, i = 0, s.m + debt, 1
  while left > 0 do
    local entryAt, cost = debtAt, debt
    if s.ats[i] and (debt == 0 or s.ats[i] <= debtAt) then
      entryAt, cost = s.ats[i], s.costs[i]
      i = i + 1
    else
      debt = 0
    end
    if left <= room and entryAt + f.per > at then break end
    left, freedAt = left - cost, entryAt + f.per
  end
  return freedAt
end

function log.earliest(f, s, now, cost)
  local debtAt, debt = lastDebt(f, s)
  now = max(now, newestEntry(s), debtAt)
  return max(now, freed(f, s, debtAt, debt, now, f.units - cost))
end

-- next returns the instant when one more unit fits, after the decision on q. If q is
-- allowed but another key's denial prevents the spending, more than one unit remains.
function log.next(q, s)
  if not q.allowed then return log.earliest(q, s, s.now, 1) end
  local room = q.units - 1 - q.cost
  if room < 0 then return q.at + q.per end
  local debtAt, debt = lastDebt(q, s)
  local at = max(q.at, newestEntry(s), debtAt)
  return max(at, freed(q, s, debtAt, debt, at, room))
end

function log.spend(f, s, at, cost)
  local k = #s.ats
  while k > 0 and s.ats[k] > at do k = k - 1 end
  if s.ats[k] == at then
    s.costs[k] = s.costs[k] + cost
  else
    table.insert(s.ats, k + 1, at)
    table.insert(s.costs, k + 1, cost)
  end
  s.m = s.m + cost
end

-- take takes up to n from the i-th spending, and returns the amount.
local function take(s, i, n)
  n = min(n, s.costs[i])
  s.costs[i], s.m = s.costs[i] - n, s.m - n
  if s.costs[i] == 0 then
    table.remove(s.ats, i)
    table.remove(s.costs, i)
  end
  return n
end

-- due spends the due part of the debt.
local function due(f, s, now)
  local k = divide(now - s.at, f.per)
  local past = k * f.units
  if past >= s.n then
    s.n = 0
    return
  end
  s.n, s.at = s.n - past, s.at + k * f.per
  local part, i = min(s.n, f.units), 1
  while s.ats[i] and s.ats[i] < s.at do i = i + 1 end
  if s.ats[i] == s.at then
    s.costs[i] = s.costs[i] + part
  else
    table.insert(s.ats, i, s.at)
    table.insert(s.costs, i, part)
  end
  s.m, s.n, s.at = s.m + part, s.n - part, s.at + f.per
end

function log.advance(f, s, now)
  if s.n > 0 and s.at <= now then due(f, s, now) end
  local ats, costs, k, n = s.ats, s.costs, 0, #s.ats
  while k < n and ats[k + 1] <= now - f.per do
    k = k + 1
    s.m = s.m - costs[k]
  end
  if k == 0 then return end
  s.ats, s.costs = {}, {}
  for i = k + 1, n do s.ats[i - k], s.costs[i - k] = ats[i], costs[i] end
end

function log.refund(f, s, now, sp, actual)
  log.advance(f, s, now)
  for i = #s.ats, 1, -1 do
    if s.ats[i] == sp.at then return take(s, i, sp.cost - actual) end
  end
end

function log.charge(f, s, now, n)
  log.advance(f, s, now)
  if s.n == 0 and n <= f.units and log.earliest(f, s, now, n) == now then
    return log.spend(f, s, now, n)
  end
  n, s.n = n + s.n, 0
  s.at = log.earliest(f, s, now, min(n, f.units))
  s.n = n
  log.advance(f, s, now)
end

-- replace places another log's debt again: as much of it as fits now, and the rest behind everything
-- else. A debt behind a booking may be a part of the booking, and does not come before it.
function log.replace(f, s, now)
  local debt, at = s.n, s.at
  if debt == 0 then return end
  s.n = 0
  log.advance(f, s, now)
  local i = #s.ats + 1
  while i > 1 and s.ats[i - 1] > now do i = i - 1 end
  if not s.ats[i] or at <= s.ats[i] then
    local part = min(debt, max(0, f.units - s.m))
    if part > 0 and s.ats[i - 1] == now then
      s.costs[i - 1] = s.costs[i - 1] + part
    elseif part > 0 then
      table.insert(s.ats, i, now)
      table.insert(s.costs, i, part)
    end
    s.m, debt = s.m + part, debt - part
  end
  if debt > 0 then s.at, s.n = log.earliest(f, s, now, min(debt, f.units)), debt end
end

function log.forgive(f, s, now, n)
  log.advance(f, s, now)
  local off = min(n, s.n)
  s.n, n = s.n - off, n - off
  local i = #s.ats
  while i > 0 and s.ats[i] > now do i = i - 1 end
  while n > 0 and i > 0 do i, n = i - 1, n - take(s, i, n) end
  while n > 0 and #s.ats > 0 do n = n - take(s, #s.ats, n) end
end

-- oldAts and oldCosts are the entries set aside by a log, and aside is their
-- sum. Each lapses oldPer after its instant, and the last one at lapses.

-- lapseOlder drops the lapsed entries.
local function lapseOlder(s, now)
  local ats, costs, k = s.oldAts, s.oldCosts, 0
  while ats[k + 1] and ats[k + 1] <= now - s.oldPer do
    k = k + 1
    s.aside = s.aside - costs[k]
  end
  s.oldAts, s.oldCosts = {}, {}
  for i = k + 1, #ats do s.oldAts[i - k], s.oldCosts[i - k] = ats[i], costs[i] end
  if s.aside == 0 then
    s.lapses, s.oldPer = 0, nil
  else
    s.lapses = s.oldAts[#s.oldAts] + s.oldPer
  end
end

-- takeOld takes up to n from the i-th entry set aside, and returns the amount.
local function takeOld(s, i, n)
  n = min(n, s.oldCosts[i])
  s.oldCosts[i], s.aside = s.oldCosts[i] - n, s.aside - n
  if s.oldCosts[i] == 0 then
    table.remove(s.oldAts, i)
    table.remove(s.oldCosts, i)
  end
  return n
end

-- reduceAside takes n from the units set aside.
local function reduceAside(s, n)
  if not s.oldPer then
    s.aside = s.aside - n
    return
  end
  while n > 0 do n = n - takeOld(s, #s.oldAts, n) end
  lapseOlder(s, 0)
end

-- between puts a state under another log. It sets aside the entries that counted under the old log, but
-- do not count under this one: they have left its window, or exceed its units. Each keeps its instant.
function log.between(from, f, s, now, debt)
  log.advance(from, s, now)
  local ats, costs, per = s.oldAts, s.oldCosts, max(from.per, s.oldPer or 0)
  if not s.oldPer then
    ats, costs = {}, {}
    if s.aside > 0 then -- another algorithm has kept no entries for these units: none is newer than the first entry
      ats[1], costs[1] = min(now, s.ats[1] or now), s.aside
      per = max(per, s.lapses - ats[1])
    end
  end
  for i = 1, #s.ats do
    if ats[#ats] ~= s.ats[i] then ats[#ats + 1], costs[#costs + 1] = s.ats[i], 0 end
    costs[#costs] = costs[#costs] + s.costs[i]
  end
  local past, off = 0, 0
  for i = 1, #ats do
    if ats[i] <= now then past = past + costs[i] end -- the booked entries come last, and stay
    if ats[i] <= now - f.per then off = past end
  end
  off = max(off, past + s.n - f.units - debt)
  local over = max(0, off - past) -- a part of the debt
  off, s.n = off - over, s.n - over
  s.aside, s.oldPer, s.oldAts, s.oldCosts, s.ats, s.costs, s.m = off + over, per, {}, {}, {}, {}, 0
  for i = 1, #ats do
    local part = min(off, costs[i])
    off = off - part
    if part > 0 then s.oldAts[i], s.oldCosts[i] = ats[i], part end
    if part < costs[i] then log.spend(f, s, ats[i], costs[i] - part) end
  end
  if over > 0 then
    if s.oldAts[#s.oldAts] ~= now then s.oldAts[#s.oldAts + 1], s.oldCosts[#s.oldCosts + 1] = now, 0 end
    s.oldCosts[#s.oldCosts] = s.oldCosts[#s.oldCosts] + over
  end
  lapseOlder(s, now)
  log.replace(f, s, now)
  s.n = min(s.n, f.debt)
end

-- settleOlder gives back the spending's entry, if it is set aside. If the entry counts, older entries take its place:
-- they would count in this log if the real cost had been known. It returns the actual cost still to be settled.
local function settleOlder(f, s, now, sp, actual)
  lapseOlder(s, now)
  for i = #s.oldAts, 1, -1 do
    if s.oldAts[i] == sp.at then
      actual = actual + takeOld(s, i, sp.cost - actual)
      break
    end
  end
  log.advance(f, s, now)
  local n = 0
  for i = 1, #s.ats do
    if s.ats[i] == sp.at then n = min(sp.cost - actual, s.costs[i]) end
  end
  while n > 0 and #s.oldAts > 0 and s.oldAts[#s.oldAts] > now - f.per do
    local at = s.oldAts[#s.oldAts]
    local part = takeOld(s, #s.oldAts, n)
    if s.ats[1] == at then
      s.costs[1] = s.costs[1] + part
    else
      table.insert(s.ats, 1, at)
      table.insert(s.costs, 1, part)
    end
    s.m, n = s.m + part, n - part
  end
  if s.aside == 0 then s.lapses, s.oldPer = 0, nil else lapseOlder(s, now) end
  return actual
end

-- unbook removes the later bookings, and returns their instants and costs.
function log.unbook(s, now)
  local ats, costs, k = {}, {}, #s.ats
  while k > 0 and s.ats[k] > now do k = k - 1 end
  for i = k + 1, #s.ats do
    ats[i - k], costs[i - k] = s.ats[i], s.costs[i]
    s.ats[i], s.costs[i], s.m = nil, nil, s.m - costs[i - k]
  end
  return ats, costs
end

function log.newest(f, s) return max(newestEntry(s), (lastDebt(f, s))) end

function log.regained(f, s)
  local at = log.newest(f, s)
  if at == 0 then return 0 end
  return at + f.per
end

-- counts returns the part of the spending that counts. Call it after advance.
function log.counts(f, s, now)
  local debtAt, debt = lastDebt(f, s)
  if debtAt > now - f.per then return s.m + debt end
  return s.m
end

function log.spent(f, s, now)
  log.advance(f, s, now)
  return s.m + s.n
end

log.debt = fixed.debt
