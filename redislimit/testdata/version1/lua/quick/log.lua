-- A sliding log without a debt: x is the cost, y the units, z per. It is searched where it
-- lies, and what is told of it is packed.
if n > 0 then break end -- a debt
local size, base, sum, gone, newest = 0, 0, 0, 0, 0
local gen, changes
local function record(i) -- its instant, the sum up to it, and the reading at which it was spent
  local from = 31 + 21 * i
  if from <= 2131 then return unpack('>I7I7I7', raw, from) end
  return unpack('>I7I7I7', redis.call('GETRANGE', key, from - 1, from + 19))
end
if raw then
  size = (length - 51) / 21
  if size ~= math.floor(size) then break end
  gen, changes, expiry, base = unpack('>I3BI4I7', raw, 37)
  sum = base
  if size > 0 then
    local last
    newest, sum, last = record(size)
    if last > now then now = last end
  end
else
  gen, changes, expiry = argv[5] or reading % 16777216, 0, 0
end
local begin = newest > now and newest or now
local before = base
if size > 0 and record(1) <= begin - z then -- the last one that is past
  local low, high = 1, size
  while low < high do
    local mid = math.ceil((low + high) / 2)
    if record(mid) <= begin - z then low = mid else high = mid - 1 end
  end
  local _
  gone, _, before = low, record(low)
end
local live = sum - before
if live < 0 or base > sum or sum > 9007199254740992 or newest > 9007199254740992 or now > 5851439254740992 then break end
at = begin
if live > y - x then -- the first one whose passing leaves enough room
  local low, high = gone + 1, size
  while low < high do
    local mid = math.floor((low + high) / 2)
    local _, upto = record(mid)
    if sum - upto <= y - x then high = mid else low = mid + 1 end
  end
  at = record(low) + z
end
ok = at <= now or x == 0
body = struct.pack('>BI3BI7I7I7I7I7I7', 0xFB, gen, changes, now, at, live, newest, 0, 0)
