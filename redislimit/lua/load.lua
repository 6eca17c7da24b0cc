local op, count = unpack('BB', payload)
local grace, salt = tonumber(argv[4] or 0), tonumber(argv[5] or reading % $GENERATIONS)

local WRONGTYPE, NOTOURS, OTHER = $WRONG_TYPE, $NOT_OURS, $OTHER

-- readDates reads the call's data about calendars, at the end of
-- its payload. It reports whether the time lies outside these data.
local function readDates(pos)
  local outside = false
  while pos + $DATES_SIZE - 1 <= #payload do
    local d, per = {}, 0
    per, d.prev, d.from, d.to, d.next, d.mean, d.windows, d.first, d.last = unpack('>I7I7I7I7I7I7I7I7I7', payload, pos)
    dates[per], pos = d, pos + $DATES_SIZE
    outside = outside or reading < micros(d.from) or reading >= micros(d.next)
  end
  return outside
end

local function elsewhere() return pack('>BI7', $OUTSIDE, reading) end

-- load returns a key's state, or nil if there is none, or why the state is unknown.
local function load(i)
  local raw = redis.pcall('GET', KEYS[i])
  if not raw then return nil end
  if type(raw) == 'table' then
    if string.find(raw.err, 'WRONGTYPE', 1, true) then return nil, WRONGTYPE, '' end
    return nil, OTHER, raw.err
  end
  local s = parse(raw)
  if not s then return nil, NOTOURS, '' end
  s.raw = s.noted and string.sub(raw, 1, -$NOTE_SIZE - 1) or raw
  return s
end

local function failure(i, code, text) return pack('>BB', code, i) .. text end
