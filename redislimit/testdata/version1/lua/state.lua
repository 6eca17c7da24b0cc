-- What a key holds, as one string of big-endian whole numbers:
--
--   tag 1, units 7, per 7, last 7, at 7, n 7, gen 3, changes 1, expiry 4 = 44 bytes
--
-- and m 7 for the counter and the log. 44 bytes are the most that Redis stores in one
-- piece. gen tells a key from the one of that name before it, changes counts the
-- figures that it had, last is the highest clock reading that it recorded, expiry is a
-- second (of the clock) before which Redis keeps it.
--
-- While something is booked ahead there follow base, which is the state before the
-- oldest booking (at 7, n 7, m 7), ahead 7, and the bookings (at 7, cost 7 each). Up to
-- the instant ahead, base holds bookings that are not told apart any more.
-- The log has its spendings there instead: at 7, running sum 7, last 7 each. Its m is
-- the running sum before the first.
local TOKEN, LEAKY, FIXED, LOG, COUNTER = 0xF8, 0xF9, 0xFA, 0xFB, 0xFC
local algorithms = { [TOKEN] = token, [LEAKY] = leaky, [FIXED] = fixed, [LOG] = log, [COUNTER] = counter }
local MAXBOOKED = 128

local pack, unpack = struct.pack, struct.unpack

local function whole(...)
  for i = 1, select('#', ...) do
    if select(i, ...) > TOP then return false end
  end
  return true
end

-- rising reads pairs of which both numbers rise, or returns nil.
local function rising(raw, pos, format, size, first)
  local as, bs, k, lastA, lastB = {}, {}, 0, 0, first
  while pos <= #raw do
    local a, b = unpack(format, raw, pos)
    if a <= lastA or b <= lastB or not whole(a, b) then return nil end
    k, lastA, lastB, pos = k + 1, a, b, pos + size
    as[k], bs[k] = a, b
  end
  return as, bs
end

local function parseLog(s, raw)
  if (#raw - 51) % 21 ~= 0 then return nil end
  local sums
  s.ats, sums = rising(raw, 52, '>I7I7', 21, s.m)
  if not s.ats then return nil end
  local before = s.m
  s.costs, s.m = {}, (sums[#sums] or before) - before
  for i = 1, #sums do
    s.costs[i], before = sums[i] - before, sums[i]
  end
  if #sums > 0 then s.last = max(s.last, (unpack('>I7', raw, #raw - 6))) end
  if s.last > TOP - CENTURY then return nil end
  return s
end

local function parseBooked(s, raw, pos)
  if #raw < pos + 27 or (#raw - pos - 27) % 14 ~= 0 then return nil end
  local b = { newest = 0 }
  b.at, b.n, b.m, s.ahead = unpack('>I7I7I7I7', raw, pos)
  s.base, s.bookedAts, s.bookedCosts = b, {}, {}
  for p = pos + 28, #raw, 14 do
    local at, cost = unpack('>I7I7', raw, p)
    if at < s.newest or cost < 1 or not whole(at, cost) then return nil end
    s.bookedAts[#s.bookedAts + 1], s.bookedCosts[#s.bookedCosts + 1], s.newest = at, cost, at
  end
  s.newest = max(s.newest, s.ahead)
  if s.kind == LEAKY or not whole(b.at, b.n, b.m, s.ahead) then return nil end
  if b.n > (s.kind == TOKEN and s.units - 1 or fixed.debt(s)) then return nil end
  return s
end

-- parse returns the state in a string, or nil if it is none.
local function parse(raw)
  if #raw < 44 then return nil end
  local s = { newest = 0, m = 0 }
  s.kind, s.units, s.per, s.last, s.at, s.n, s.gen, s.changes, s.expiry = unpack('>BI7I7I7I7I7I3BI4', raw)
  if not algorithms[s.kind] or s.units < 1 or s.units > MOST or s.per < 1 or s.per > MOST then return nil end
  if s.last > TOP - CENTURY or not whole(s.at, s.n) then return nil end
  if s.n > (s.kind <= LEAKY and s.units - 1 or fixed.debt(s)) then return nil end
  local size = 44
  if s.kind >= LOG then
    if #raw < 51 then return nil end
    s.m, size = unpack('>I7', raw, 45), 51
    if s.m > (s.kind == COUNTER and MOST or TOP) then return nil end
  end
  if s.kind == LOG then return parseLog(s, raw) end
  if #raw == size then return s end
  return parseBooked(s, raw, size + 1)
end

local function sums(s)
  local parts, sum = {}, 0
  for i = 1, #s.ats do
    sum = sum + s.costs[i]
    parts[i] = pack('>I7I7I7', s.ats[i], sum, s.last)
  end
  return table.concat(parts)
end

local function format(s)
  local head = pack('>BI7I7I7I7I7I3BI4', s.kind, s.units, s.per, s.last, s.at, s.n, s.gen, s.changes, s.expiry)
  if s.kind == LOG then return head .. pack('>I7', 0) .. sums(s) end
  if s.kind == COUNTER then head = head .. pack('>I7', s.m) end
  if not s.base then return head end
  local parts = { head, pack('>I7I7I7I7', s.base.at, s.base.n, s.base.m, s.ahead) }
  for i = 1, #s.bookedAts do parts[i + 2] = pack('>I7I7', s.bookedAts[i], s.bookedCosts[i]) end
  return table.concat(parts)
end

-- save writes the state, with a time to live that is twice what is needed.
local function save(key, s, reading, grace)
  local f = { units = s.units, per = s.per, cap = s.units }
  local needed = max(algorithms[s.kind].regained(f, s), s.newest, s.last)
  if s.expiry and s.expiry * 1000000 >= needed then
    return redis.call('SET', key, format(s), 'KEEPTTL')
  end
  local ttl = 2 * max(0, needed - reading) + grace
  s.expiry = min((divide(reading + ttl, 1000000)), 4294967295)
  return redis.call('SET', key, format(s), 'PX', max(1, (divide(ttl + 999, 1000))))
end
