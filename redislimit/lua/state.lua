-- A key's value, as one string of big-endian whole numbers:
--
--   kind 1, units 7, per 7, last 7, at 7, n 7, gen 3, changes 1, expiry 4
--
-- and m 7 for the counter, the log and the calendar. layout.go describes and names these.
--
-- With bookings ahead, the following are appended: base, the state before the oldest booking (at 7, n 7, m 7);
-- 7 bytes with twice a token bucket's capacity, 0 if it is not known, plus 1 if the bookings are loose; and
-- the bookings (at 7, cost 7 each). An open booking adds 2^52 to its cost. A token bucket with open
-- reservations begins with the kind OPEN. After its first 44 bytes comes their number, 1 byte, and for each
-- the instant and the least debt, 7 each. If units are set aside, and some of the reservations are from before
-- the last change of limit, the number is 128 more, and 1 byte with the number of these reservations follows.
--
-- A state with units set aside by a lowered limit, and a bucket in debt, begins with its kind less ASIDE.
-- Directly after its first 44 bytes come the bucket's capacity (0 if it is not known), the units set
-- aside, and the instant when they lapse, 7 each. Without these, a bucket's debt is at most its capacity.
--
-- A log has its spendings in the place of bookings: at 7, running sum 7, last 7 each. Its m is the running sum before
-- the first. Without a debt, its at is 1 if the bookings are loose, and 0 otherwise. If a log has set units aside, their
-- entries come first, and in the place of the capacity stands the longest window of the logs under which they counted.
--
-- If it is known that each loose booking fits at its instant, the first byte of the base's m is 128.
--
-- After a state, a denial may note until when it holds: see decide.lua. Every write of the state drops the note.
--
-- Units in use have their records in the same place: at 7, units 7, owner 7 each. Their m is the sum of the units.
local TOKEN, LEAKY, FIXED, LOG, COUNTER, CALENDAR, HELD = $TOKEN, $LEAKY, $FIXED, $LOG, $COUNTER, $CALENDAR, $HELD
local algorithms = { [TOKEN] = token, [LEAKY] = leaky, [FIXED] = fixed, [LOG] = log, [COUNTER] = counter, [CALENDAR] = calendar, [HELD] = held }

local pack, unpack = struct.pack, struct.unpack

local function whole(...)
  for i = 1, select('#', ...) do
    if select(i, ...) > TOP then return false end
  end
  return true
end

-- rising reads pairs of rising numbers, or returns nil if they do not rise.
local function rising(raw, pos, format, size, first)
  local as, bs, k, lastA, lastB = {}, {}, 0, 0, first
  while pos <= #raw do
    local a, b = unpack(format, raw, pos)
    if a <= lastA or b <= lastB or a > TOP or b > TOP then return nil end
    k, lastA, lastB, pos = k + 1, a, b, pos + size
    as[k], bs[k] = a, b
  end
  return as, bs
end

-- takeOlder separates the entries set aside from the entries that count.
local function takeOlder(s)
  local ats, costs, left = s.ats, s.costs, s.aside
  s.oldPer, s.cap, s.oldAts, s.oldCosts, s.ats, s.costs = s.cap, nil, {}, {}, {}, {}
  for i = 1, #ats do
    local part = min(left, costs[i])
    left = left - part
    if part > 0 then s.oldAts[i], s.oldCosts[i] = ats[i], part end
    if part < costs[i] then s.ats[#s.ats + 1], s.costs[#s.costs + 1] = ats[i], costs[i] - part end
  end
  s.m = s.m - s.aside
  return left == 0
end

-- unnoted removes a note from a state's end. Without the note, the state has records of the given size from pos on.
local function unnoted(s, raw, pos, size)
  if #raw < pos or fmod(#raw + 1 - pos, size) ~= fmod($NOTE_SIZE, size) then return raw end
  s.noted = string.sub(raw, -$NOTE_SIZE)
  return string.sub(raw, 1, -$NOTE_SIZE - 1)
end

local function parseLog(s, raw)
  raw = unnoted(s, raw, $WIDE_SIZE + 1, $RECORD_SIZE)
  if (#raw - $WIDE_SIZE) % $RECORD_SIZE ~= 0 then return nil end
  local sums
  s.ats, sums = rising(raw, $WIDE_SIZE + 1, '>I7I7', $RECORD_SIZE, s.m)
  if not s.ats then return nil end
  local before = s.m
  s.costs, s.m = {}, (sums[#sums] or before) - before
  for i = 1, #sums do
    s.costs[i], before = sums[i] - before, sums[i]
  end
  if #sums > 0 then s.last = max(s.last, (unpack('>I7', raw, #raw - 6))) end
  if s.last > TOP - CENTURY then return nil end
  if s.cap and not takeOlder(s) then return nil end
  s.loose = s.n == 0 and s.at == 1
  return s
end

local function parseHeld(s, raw)
  if (#raw - $WIDE_SIZE) % $RECORD_SIZE ~= 0 or s.m > MOST then return nil end
  s.records, s.ats, s.costs = string.sub(raw, $WIDE_SIZE + 1), {}, {}
  return s
end

local function parseBooked(s, raw, pos)
  if #raw < pos + $BASE_SIZE - 1 or (#raw - pos - $BASE_SIZE + 1) % $BOOKING_SIZE ~= 0 then return nil end
  local b = { newest = 0 }
  local under, loose
  b.at, b.n, b.m, under = unpack('>I7I7I7I7', raw, pos)
  if string.byte(raw, pos + 14) == 128 then
    b.m, s.bar = unpack('>I6', raw, pos + 15), 0
  end
  under, loose = divide(under, 2)
  s.loose, s.under = loose == 1, under > 0 and under or nil
  local ats, costs, opens, k, last, isToken = {}, {}, {}, 0, 0, s.kind == TOKEN
  for p = pos + $BASE_SIZE, #raw, $BOOKING_SIZE do
    local at, cost = unpack('>I7I7', raw, p)
    local open = isToken and cost > MOST
    if open then cost = cost - MOST end
    if at < last or cost < 1 or at > TOP or cost > TOP then return nil end
    k, last = k + 1, at
    ats[k], costs[k], opens[k] = at, cost, open
  end
  s.base, s.bookedAts, s.bookedCosts, s.bookedOpens, s.newest = b, ats, costs, opens, last
  s.packed = string.sub(raw, pos + $BASE_SIZE)
  if s.kind == LEAKY or not whole(b.at, b.n, b.m) then return nil end
  if b.n > (s.kind == TOKEN and s.units - 1 or algorithms[s.kind].debt(s)) then return nil end
  return s
end

-- parseOpens reads the open reservations of a token bucket, and returns the text without them.
local function parseOpens(s, raw)
  local n, pos = string.byte(raw, $STATE_SIZE + 1), $STATE_SIZE + 2
  if n and n > $OLDER then
    n, s.older, pos = n - $OLDER, string.byte(raw, pos), pos + 1
  end
  if not n or #raw < pos - 1 + 14 * n or s.older > n then return nil end
  for i = 1, n do
    local from, least = unpack('>I7I7', raw, pos + 14 * (i - 1))
    if not whole(from, least) or from <= (s.openFroms[i - 1] or -1) then return nil end
    s.openFroms[i], s.openLeasts[i] = from, least
  end
  return pack('>B', TOKEN) .. string.sub(raw, 2, $STATE_SIZE) .. string.sub(raw, pos + 14 * n)
end

-- parseAside reads the capacity, the units set aside and the instant when they lapse, and returns the text without them.
local function parseAside(s, raw)
  if #raw < $STATE_SIZE + $ASIDE_SIZE then return nil end
  s.cap, s.aside, s.lapses = unpack('>I7I7I7', raw, $STATE_SIZE + 1)
  if s.cap > MOST or s.aside > MOST or s.lapses > TOP then return nil end
  if s.cap == 0 then s.cap = nil end
  return pack('>B', string.byte(raw) + $ASIDE) .. string.sub(raw, 2, $STATE_SIZE) .. string.sub(raw, $STATE_SIZE + $ASIDE_SIZE + 1)
end

-- parse returns the state in a string, or nil if the string is not a state.
local function parse(raw)
  if #raw < $STATE_SIZE then return nil end
  local s = { newest = 0, m = 0, aside = 0, lapses = 0, older = 0, openFroms = {}, openLeasts = {} }
  local first = string.byte(raw)
  if first >= $TOKEN - $ASIDE and first <= $OPEN_KIND - $ASIDE then
    raw = parseAside(s, raw)
    if not raw then return nil end
  end
  if string.byte(raw) == $OPEN_KIND then
    raw = parseOpens(s, raw)
    if not raw then return nil end
  end
  s.kind, s.units, s.per, s.last, s.at, s.n, s.gen, s.changes, s.expiry = unpack('>BI7I7I7I7I7I3BI4', raw)
  if not algorithms[s.kind] or s.units < 1 or s.units > MOST or s.per < 1 or s.per > MOST then return nil end
  if s.kind == CALENDAR and s.per < MOST / 2 then return nil end -- it names a calendar
  if s.last > TOP - CENTURY or not whole(s.at, s.n) then return nil end
  if s.n > (s.kind <= LEAKY and s.units - 1 or algorithms[s.kind].debt(s)) then return nil end
  local size = $STATE_SIZE
  if s.kind >= LOG then
    if #raw < $WIDE_SIZE then return nil end
    s.m, size = unpack('>I7', raw, $STATE_M), $WIDE_SIZE
    if s.m > (s.kind == COUNTER and MOST or TOP) then return nil end
  end
  if s.kind == LOG then return parseLog(s, raw) end
  if s.kind == HELD then return parseHeld(s, raw) end
  raw = unnoted(s, raw, size + 1, $BOOKING_SIZE)
  if #raw == size then return s end
  return parseBooked(s, raw, size + 1)
end

local function sums(s)
  local parts, sum, last = {}, 0, nil
  local function add(ats, costs)
    for i = 1, #ats do
      sum = sum + costs[i]
      if ats[i] ~= last then parts[#parts + 1] = '' end -- otherwise the entry counts in part
      parts[#parts], last = pack('>I7I7I7', ats[i], sum, s.last), ats[i]
    end
  end
  if s.oldPer then add(s.oldAts, s.oldCosts) end
  add(s.ats, s.costs)
  return table.concat(parts)
end

local function format(s)
  if s.kind == LOG and s.n == 0 then s.at = s.loose and newestEntry(s) > s.last and 1 or 0 end
  local opens = s.kind == TOKEN and #s.openFroms or 0
  local kind = opens > 0 and $OPEN_KIND or s.kind
  local more = s.aside > 0 or s.kind <= LEAKY and s.cap
  local head = pack('>BI7I7I7I7I7I3BI4', more and kind - $ASIDE or kind, s.units, s.per, s.last, s.at, s.n, s.gen, s.changes, s.expiry)
  if more then head = head .. pack('>I7I7I7', s.cap or s.oldPer or 0, s.aside, s.lapses) end
  if s.kind == LOG then return head .. pack('>I7', 0) .. sums(s) end
  if s.kind == HELD then return head .. pack('>I7', s.m) .. s.records end
  if s.kind >= COUNTER then head = head .. pack('>I7', s.m) end
  local parts = { head }
  if opens > 0 and s.older > 0 and s.aside > 0 then
    parts[2] = pack('>BB', $OLDER + opens, s.older)
  elseif opens > 0 then
    parts[2] = pack('>B', opens)
  end
  for i = 1, opens do parts[#parts + 1] = pack('>I7I7', s.openFroms[i], s.openLeasts[i]) end
  if s.base then
    local under = s.under and s.under < MOST and s.under or 0
    local m = pack('>I7', s.base.m)
    if s.loose and s.bar == 0 and string.byte(m) == 0 then m = '\128' .. string.sub(m, 2) end
    parts[#parts + 1] = pack('>I7I7', s.base.at, s.base.n) .. m .. pack('>I7', 2 * under + (s.loose and 1 or 0)) .. (s.packed or '')
  end
  for i = 1, s.base and not s.packed and #s.bookedAts or 0 do
    parts[#parts + 1] = pack('>I7I7', s.bookedAts[i], s.bookedCosts[i] + (s.bookedOpens[i] and MOST or 0))
  end
  return table.concat(parts)
end

-- lifetime returns for how many milliseconds a state is kept, twice as long as necessary,
-- and sets its expiry. It returns nil if the state is kept for long enough already.
local function lifetime(s, reading, grace)
  local f = { units = s.units, per = s.per, cap = s.units }
  local needed = max(algorithms[s.kind].regained(f, s), s.newest, s.last, s.lapses)
  if s.expiry and s.expiry * 1000000 >= needed then return nil end
  local ttl = 2 * max(0, needed - reading) + grace
  s.expiry = min((divide(reading + ttl, 1000000)), $MAX_EXPIRY)
  return max(1, (divide(ttl + 999, 1000)))
end

-- save writes the state.
local function save(key, s, reading, grace)
  s.noted = nil
  if s.cap and s.aside == 0 and not s.base and not above(s, s, s.last, s.cap) then s.cap = nil end
  local life = lifetime(s, reading, grace)
  if life then return redis.call('SET', key, format(s), 'PX', life) end
  return redis.call('SET', key, format(s), 'KEEPTTL')
end

-- prolong makes a state live until it is fresh under its new limit.
-- It drops the note, and changes nothing else in the stored data.
local function prolong(key, s, reading, grace)
  local life = lifetime(s, reading, grace)
  if not life then return end
  local raw = string.sub(s.raw, 1, $STATE_EXPIRY - 1) .. pack('>I4', s.expiry) .. string.sub(s.raw, $STATE_SIZE + 1)
  redis.call('SET', key, raw, 'PX', life)
  s.noted = nil
end
