-- A sliding log without a debt: x is the cost, y the units, z per. It is searched where it
-- lies, and what is told of it is packed.
if n > 0 then break end -- a debt
local size, base, sum, gone, newest = 0, 0, 0, 0, 0
local gen, changes
if raw then
  size = (#raw - 51) / 21
  if size ~= math.floor(size) then break end
  gen, changes, expiry, base = unpack('>I3BI4I7', raw, 37)
  sum = base
  if size > 0 then
    local last
    newest, sum, last = unpack('>I7I7I7', raw, 31 + 21 * size)
    if last > now then now = last end
  end
else
  gen, changes, expiry = argv[5] or reading % 16777216, 0, 0
end
local begin = newest > now and newest or now
local before = base
if size > 0 and unpack('>I7', raw, 52) <= begin - z then -- the last one that is past
  local low, high = 1, size
  while low < high do
    local mid = math.ceil((low + high) / 2)
    if unpack('>I7', raw, 31 + 21 * mid) <= begin - z then low = mid else high = mid - 1 end
  end
  gone, before = low, unpack('>I7', raw, 38 + 21 * low)
end
local live = sum - before
if live < 0 or base > sum or sum > 9007199254740992 or newest > 9007199254740992 or now > 5851439254740992 then break end
at = begin
if live > y - x then -- the first one whose passing leaves enough room
  local low, high = gone + 1, size
  while low < high do
    local mid = math.floor((low + high) / 2)
    if sum - unpack('>I7', raw, 38 + 21 * mid) <= y - x then high = mid else low = mid + 1 end
  end
  at = unpack('>I7', raw, 31 + 21 * low) + z
end
ok = at <= now or x == 0
body = struct.pack('>BI3BI7I7I7I7I7', 0xFB, gen, changes, now, at, live, newest, 0)
