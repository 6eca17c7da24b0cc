-- One decision over several keys: all are read and checked first, and written last.
local PEEK, KEEP, OPEN, BETWEEN = $PEEK, $KEEP, $OPEN, $BETWEEN

-- A shared call has no count and no calendars.
local outside = count > 0 and readDates($HEAD_SIZE + 1 + $CHARGE_SIZE * count)
local states = {}

local function begin(k)
  local s, code, text = load(k)
  if code then return nil, code, text end
  s = s or { gen = salt, changes = 0, last = reading, at = reading, n = 0, m = 0, newest = 0, aside = 0, lapses = 0, older = 0, ats = {}, costs = {}, records = '', openFroms = {}, openLeasts = {} }
  states[k] = s
  return s
end

local function chargeAt(i)
  local q = {}
  local pos = $HEAD_SIZE + 1 + $CHARGE_SIZE * (i - 1)
  local how
  q.key, how, q.kind, q.units, q.per = unpack('>BBBI7I7', payload, pos)
  q.cost, q.ahead, q.cap, q.since = unpack('>I7I7I7I7', payload, pos + $CHARGE_COST)
  q.shadow, q.before, q.behind = how == $SHADOW, how == $BEFORE, how == $BEHIND
  if q.kind == HELD then q.owner = unpack('>I7', payload, pos + $CHARGE_OWNER) end
  if q.before and q.kind ~= HELD then
    local o = {}
    o.at, o.cost, o.part, o.gen, o.changes = unpack('>I7I7I7I7I7', payload, pos + $CHARGE_FIRST)
    o.kind, o.changes = divide(o.changes, 256)
    o.open = o.kind == TOKEN and o.part == 1
    q.old = o
  end
  q.debt = algorithms[q.kind].debt(q)
  return q
end

-- place returns nil if the state has a place for one more booking, so that it
-- can be given back. Otherwise it returns when a booking will have passed.
local function place(q, s)
  if q.kind == LOG then
    if #s.ats >= q.cap + $MAX_QUEUED then return s.ats[1] + q.per end
  elseif s.base and #s.bookedAts >= $MAX_BOOKED and s.bookedAts[#s.bookedAts] ~= q.at then
    return s.bookedAts[1]
  end
end

-- digest packs a key's state: before the decision, or after it if its bookings are loose.
local function digest(q, s)
  if q.kind == LOG then
    q.digest = pack('>I3BI7I7I7I7I7I7', s.gen, s.changes, s.now, q.at, log.counts(q, s, s.now), log.newest(q, s), s.m + s.n, log.next(q, s))
  elseif q.kind == HELD then
    q.digest = pack('>I3BI7I7I7I7I7I7', s.gen, s.changes, s.now, q.at, s.m, held.ages(s, s.now), 0, 0)
  else
    q.digest = pack('>I3BI7I7I7I7I7I7', s.gen, s.changes, s.now, s.at, s.n, s.m, s.newest, 0)
  end
end

local function copyOf(t)
  local c = {}
  for k, v in pairs(t) do
    if type(v) == 'table' then
      c[k] = {}
      for i, x in pairs(v) do c[k][i] = x end
    else
      c[k] = v
    end
  end
  return c
end

-- weigh determines the instant when a cost is spent, and whether that is in time. If the
-- cost replaces a booking, weigh computes with a copy of the state without this booking.
local function weigh(q, s)
  local a = algorithms[q.kind]
  s.now = max(reading, s.last)
  if not s.kind then s.kind, s.units, s.per = q.kind, q.units, q.per end
  q.last = s.last
  adopt(s, q, s.now)
  if q.old and q.old.cost > 0 and q.old.gen == s.gen then
    s = copyOf(s)
    s.bar = nil
    refund(a, q, s, s.now, q.old, 0)
  end
  q.state = s
  if q.kind == LEAKY or q.kind == LOG or q.kind == HELD then a.advance(q, s, s.now) end
  local between = op == BETWEEN and s.base
  if (between or q.before) and not s.loose and (s.base or q.kind == LOG and newestEntry(s) > s.now) then s.loose, s.tight = true, true end
  if q.behind and s.loose then s.loose, s.parted = false, true end
  q.at = s.now
  local retry = reading
  if q.cost > 0 then
    local from = s.now
    if between then from = max(from, min(unpack('>I7', payload, #payload - 6), s.newest)) end
    q.at, q.between, q.merged = first(a, q, s, from, q.cost)
    if q.kind == LEAKY then
      if q.at > s.now then retry = q.at end
      q.at = leaves(q, s, s.now)
    end
    if q.at > s.now and q.ahead < MOST then retry = max(retry, q.at - q.ahead) end
  end
  if q.kind == CALENDAR and q.at > s.now and not q.between then
    -- No booking is later than the next window: the call has no data about later windows.
    local boundary = micros(dates[q.per].to)
    if q.at > boundary then retry = max(retry, boundary) end
  end
  q.retry, q.allowed = retry, retry <= reading
  if q.allowed and q.at > s.now then
    q.place = place(q, s)
    q.allowed = not q.place
  end
  q.loose = s.loose
  if not q.loose then digest(q, s) end
  return q.allowed
end

local function spend(q, s)
  if q.cost == 0 then return end
  local same = q.merged and s.bar == 0 and not s.dirty -- after the bookings
  s.last, s.dirty = s.now, true
  if not same then s.bar = nil end
  local a = algorithms[q.kind]
  local open = op == OPEN and q.kind == TOKEN
  if q.at > s.now and (op == KEEP or op == OPEN or op == BETWEEN or s.base) and q.kind ~= LOG and q.kind ~= LEAKY then
    return book(a, q, s, q.at, q.cost, open)
  end
  local base = s.base or s -- before loose bookings
  if q.kind == TOKEN then sample(s, q.at, (total(s, base, q.at))) end
  a.spend(q, base, q.at, q.cost)
  if open then opened(s, q.at) end
  if s.base and not same then fold(a, q, s) end
end

-- note returns the data for the usual case to repeat a denial: the figures and the call's capacity; its cost, plus 2^52 if the
-- denial also holds for all higher costs; from when until when it holds while nothing is written; the instant as of which the
-- state was carried over, 0 for its last reading; and the reply without the verdict and the decision's instant. It returns nil
-- for a state readable by the usual case, and if the reply's figures change all the time, as a debt among loose bookings does.
--
-- Later calls agree on the change's instant, so the carried state need not be stored. But each process has its own instant.
-- A note serves processes with the same or a later instant: in a fleet, the first process has put the limit in force.
local function note(q, s, bookings)
  local leaky, newest = q.kind == LEAKY, q.kind == LOG and newestEntry(s) or s.newest
  if not s.carried and s.aside == 0 and newest <= s.now then return nil end
  if q.kind >= CALENDAR or q.allowed or q.place or q.cost == 0 or q.since == 0 or not q.digest then return nil end
  if leaky and q.ahead < MOST or not leaky and q.ahead > 0 then return nil end
  local cost, till = MOST + q.cost, q.retry
  if q.kind == LOG or s.loose and s.bar ~= #s.bookedAts then
    local ats = q.kind == LOG and s.ats or s.bookedAts
    cost = q.cost
    if q.kind == LOG then
      if ats[1] then till = min(till, ats[1] + q.per) end
      if s.n > 0 then till = min(till, s.at) end
    end
    for i = 1, #ats do
      if ats[i] > s.now then
        till = min(till, ats[i])
        break
      end
    end
    if bookings then
      local _, _, left, debt, next = unpack('>BI7I7I7I7', bookings)
      if left > 0 and left < TOP or debt > 0 and q.kind ~= LOG then return nil end
      if left == 0 and next > 0 then till = min(till, next) end
    end
  elseif s.newest > s.now then
    cost, till = MOST + 1, s.newest -- behind all bookings
  end
  if s.aside > 0 then till = min(till, s.lapses, s.oldPer and s.oldAts[1] + s.oldPer or TOP) end
  return pack('>BI7I7I7I7I7I7I7', q.kind, q.units, q.per, q.cap, cost, s.now, till, s.carried and q.since > q.last and q.since or 0) ..
    string.sub(q.digest, 1, 4) .. string.sub(q.digest, 12) .. (bookings or string.rep('\0', $LOOSE_SIZE))
end

-- keep writes a note after a stored state. A note for other calls stays for a second, so that
-- two limits on one key do not write in turn. Where Redis refuses writes, there is no note.
local function keep(key, s, text)
  if not s.noted then return redis.pcall('APPEND', key, text) end
  local whose = $NOTE_FROM - 1
  local from, till = unpack('>I7I7', s.noted, $NOTE_FROM)
  if string.sub(s.noted, 1, whose) ~= string.sub(text, 1, whose) and reading >= from and reading < min(till, from + $NOTE_STAYS) then return end
  redis.pcall('SETRANGE', key, #s.raw, text)
end

-- decide decides on the requests from first to last, and returns the reply.
local function decide(first, last)
  if outside then return elsewhere() end
  local charges, allowed = {}, true
  states = {}
  for i = first, last do
    local q = chargeAt(i)
    charges[i] = q
    if not q.shadow then
      local s, code, text = begin(q.key)
      if not s then return failure(i - first + 1, code, text) end
      allowed = weigh(q, s) and allowed
    end
  end
  if allowed and op ~= PEEK then
    for i = first, last do
      local q = charges[i]
      if q.old then states[q.key] = q.state end
      if not q.shadow then spend(q, states[q.key]) end
    end
  end
  local parts = { pack('>BI7', allowed and 1 or 0, reading) }
  for i = first, last do
    local q = charges[i]
    if q.shadow then
      local s, code, text = states[q.key], nil, nil
      if not s then s, code, text = begin(q.key) end
      if not s then
        parts[i - first + 2] = pack('>B', code) .. string.rep('\0', $DIGEST_SIZE - 1)
      else
        if weigh(q, s) and allowed and op ~= PEEK then spend(q, s) end
      end
    end
    if q.loose then digest(q, q.state) end
    if q.place then -- only a decision on one key books ahead
      parts[i - first + 2] = pack('>B', $FULL) .. q.digest .. pack('>I7', q.place)
    elseif q.digest then
      parts[i - first + 2] = pack('>B', q.allowed and 1 or 0) .. q.digest
    end
  end
  local bookings
  for i = first, last do
    if charges[i].loose then
      bookings = report(i - first + 1, charges[i], charges[i].state)
      parts[#parts + 1] = bookings
    end
  end
  for k, s in pairs(states) do
    if op == PEEK then break end
    if s.tight then s.loose = false end -- other costs have no room before the bookings
    if s.parted then s.loose = true end -- other costs have room
    if s.dirty then
      save(KEYS[k], s, reading, grace)
    elseif s.carried then
      prolong(KEYS[k], s, reading, grace)
    end
    local text = op == $TAKE and first == last and note(charges[first], s, bookings)
    if text then keep(KEYS[k], s, text) end
  end
  return table.concat(parts)
end
