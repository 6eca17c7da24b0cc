-- This script settles several spendings of one decision, extends its units' hold, or adjusts one key.
local ADJUST, EXTEND = $ADJUST, $EXTEND

local outside = readDates($HEAD_SIZE + 1 + (op == ADJUST and $ADJUST_SIZE or $SETTLE_SIZE) * count)
local states = {}

-- settleOne settles a spending, or extends its units' hold and returns their number.
local function settleOne(pos)
  local sp, f, actual, key, gen = {}, {}, 0, 0, 0
  key, sp.kind, sp.changes, gen, sp.cost, actual, sp.at, sp.part, f.kind, f.units, f.per, f.since, f.cap =
    unpack('>BBBI3I7I7I7I7BI7I7I7I7', payload, pos)
  sp.open = sp.kind == TOKEN and sp.part == 1 -- in a token bucket the part has no other meaning
  local s = states[key]
  if not s or s.gen ~= gen then return 0 end
  local now = max(reading, s.last)
  if f.since >= s.last then
    -- If the limit has changed, denials may have reported the key's state under this limit.
    f.debt = algorithms[f.kind].debt(f)
    adopt(s, f, now)
  else
    lapse(s, now)
    popDue(s, now)
  end
  local a, cap = algorithms[s.kind], s.cap or s.under
  if not cap and same(s, f, now) then cap = f.cap end
  f = figures(s.kind, s.units, s.per)
  f.cap = cap
  if op == EXTEND then
    local n = s.kind == HELD and held.extend(f, s, now, sp.part) or 0
    if n > 0 then s.last, s.dirty = now, true end
    return n
  end
  s.last, s.dirty, s.bar = now, true, nil
  if actual > sp.cost then
    charge(a, f, s, now, actual - sp.cost)
  else
    refund(a, f, s, now, sp, actual)
  end
end

local function adjustOne(pos)
  local key, kind, sign, delta, units, per, since, cap = unpack('>BBBI7I7I7I7I7', payload, pos)
  local f, a, s = figures(kind, units, per), algorithms[kind], states[key]
  if not s then
    if sign == 1 then return end
    s = { kind = kind, units = units, per = per, gen = salt, changes = 0, last = reading, at = reading, n = 0, m = 0,
      newest = 0, aside = 0, lapses = 0, older = 0, ats = {}, costs = {}, records = '', openFroms = {}, openLeasts = {} }
    states[key] = s
  end
  local now = max(reading, s.last)
  f.since, f.cap = since, cap
  adopt(s, f, now)
  s.last, s.dirty, s.bar = now, true, nil
  if sign == 1 then forgive(a, f, s, now, delta) else charge(a, f, s, now, delta) end
end

local function settle()
  if outside then return elsewhere() end
  for k = 1, #KEYS do
    local s, code, text = load(k)
    if code then return failure(k, code, text) end
    states[k] = s
  end
  local parts = { pack('>BI7', 1, reading) }
  for i = 1, count do
    if op == ADJUST then
      adjustOne($HEAD_SIZE + 1 + $ADJUST_SIZE * (i - 1))
    else
      local n = settleOne($HEAD_SIZE + 1 + $SETTLE_SIZE * (i - 1))
      if op == EXTEND then parts[i + 1] = pack('>I7', n) end
    end
  end
  for k, s in pairs(states) do
    if s.dirty then save(KEYS[k], s, reading, grace) end
  end
  return table.concat(parts)
end

return settle()
