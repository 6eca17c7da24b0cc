-- A bucket: what is owed may be x µs for the cost to fit, and y of z more. Where whole µs
-- deny it, the price alone is read: who owes more than the capacity had a larger one, or is in debt.
local raw = redis.pcall('GET', key)
local id, x = unpack('>c${ID_SIZE}I7', ask, pos + $ASK_ID)
local now, at, n, body = reading, reading, 0, raw or ''
local m, mark, expiry, needed, value, life, y, z, price, part, debt
if raw then
  if #raw ~= $STATE_SIZE then -- the table of an error has no length
    if #raw ~= $STATE_SIZE + $ASIDE_SIZE then break end
    local cap, aside = unpack('>I7I7', raw, $STATE_SIZE + 1)
    local cost, _, same = unpack('>I7I7I7', ask, pos + $ASK_COST)
    if aside > 0 or cap ~= same or cost == 0 or string.byte(raw) + $ASIDE ~= string.byte(id) then break end
    raw, debt = string.sub(id, 1, 1) .. string.sub(raw, 2, $STATE_SIZE), true -- in debt, or no longer
    body = raw
  end
  local figures, last
  figures, last, at = unpack('>c${ID_SIZE}I7I7', raw)
  if figures ~= id or last > $LATEST or at > $TOP then break end
  if last > now then now = last end
end
local ok = at - now <= x
if ok then
  y, z, price, part = unpack('>I7I7I7I7', ask, pos + $ASK_SECOND)
  if raw then
    n, mark, expiry = unpack('>I7c4I4', raw, $STATE_N)
    if n >= z then break end
  end
  if at < now then at, n = now, 0 end
  ok = at - now < x or n <= y
end
if not ok and not debt and at - now >= x + (price or unpack('>I7', ask, pos + $ASK_PRICE)) then break end
