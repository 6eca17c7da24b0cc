-- A sliding log without a debt. It is searched where it lies, and a spending is appended;
-- what is past is dropped once it is more than half.
if n > 0 then break end -- a debt
local size, base, sum, gone = 0, 0, 0, 0
if raw then
  size = (#raw - 51) / 21
  if size ~= math.floor(size) then break end
  base = unpack('>I7', raw, 45)
  sum = base
  if size > 0 then
    local last
    newest, sum, last = unpack('>I7I7I7', raw, 31 + 21 * size)
    if last > now then now = last end
  end
end
local begin = newest > now and newest or now
local before = base
if size > 0 and unpack('>I7', raw, 52) <= begin - per then -- the last one that is past
  local low, high = 1, size
  while low < high do
    local mid = math.ceil((low + high) / 2)
    if unpack('>I7', raw, 31 + 21 * mid) <= begin - per then low = mid else high = mid - 1 end
  end
  gone, before = low, unpack('>I7', raw, 38 + 21 * low)
end
local live = sum - before
if live < 0 or base > sum or sum > 9007199254740992 or newest > 9007199254740992 or now > 5851439254740992 then break end
at = begin
if live > units - cost then -- the first one whose passing leaves enough room
  local low, high = gone + 1, size
  while low < high do
    local mid = math.floor((low + high) / 2)
    if sum - unpack('>I7', raw, 38 + 21 * mid) <= units - cost then high = mid else low = mid + 1 end
  end
  at = unpack('>I7', raw, 31 + 21 * low) + per
end
ok = at <= now
if not ok and ahead > 0 then break end
was, had, m = at, live, newest
if ok and allowed and cost > 0 and op ~= 2 then
  local record = pack('>I7I7I7', at, sum + cost, now)
  needed = at + per
  if raw and expiry * 1000000 >= needed and (gone < 16 or gone < size / 2) and newest ~= at then
    value, life = record, -1
  else
    local kept = ''
    if raw then
      if newest == at then size = size - 1 end
      kept = string.sub(raw, 52 + 21 * gone, 51 + 21 * size)
    end
    local renew = expiry * 1000000 < needed
    local ttl = 2 * (needed - reading) + unpack('>I7', ARGV[1], 12)
    if renew then expiry = math.min(math.floor((reading + ttl) / 1000000), 4294967295) end
    value = pack('>BI3BI7I7I7I4I7I7I7', kind, gen, changes, now, units, per, expiry, 0, 0, before) .. kept .. record
    life = renew and math.ceil(ttl / 1000) or 0
  end
end
