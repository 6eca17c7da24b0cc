local op, count = unpack('BB', ask)
local grace, salt = tonumber(argv[4] or 0), tonumber(argv[5] or reading % 16777216)

local WRONGTYPE, NOTOURS, OTHER = 2, 3, 4

-- load returns the state of a key, nil if there is none, or why there is no telling.
local function load(i)
  local raw = redis.pcall('GET', KEYS[i])
  if not raw then return nil end
  if type(raw) == 'table' then
    if string.find(raw.err, 'WRONGTYPE', 1, true) then return nil, WRONGTYPE, '' end
    return nil, OTHER, raw.err
  end
  local s = parse(raw)
  if not s then return nil, NOTOURS, '' end
  return s
end

local function failure(i, code, text) return pack('>BB', code, i) .. text end
