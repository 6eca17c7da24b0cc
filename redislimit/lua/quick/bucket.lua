-- A bucket: the cost fits while the debt is at most x µs, and y of z more. Where whole µs allowed it at the last reading, only
-- the price is read.
local raw = redis.pcall('GET', key)
local id, x = unpack('>c${ID_SIZE}I7', ask, pos + $ASK_ID)
local now, at, n, body = reading, reading, 0, raw or ''
local m, mark, expiry, needed, value, life, y, z, price, part
local wide = false -- it may owe more than the capacity
if raw then
  local debt = #raw ~= $STATE_SIZE -- the table of an error has no length
  if debt then
    if #raw ~= $STATE_SIZE + $ASIDE_SIZE then break end
    local cap, aside = unpack('>I7I7', raw, $STATE_SIZE + 1)
    local cost, _, same = unpack('>I7I7I7', ask, pos + $ASK_COST)
    if aside > 0 or cap ~= same or cost == 0 or string.byte(raw) + $ASIDE ~= string.byte(id) then break end
    raw = string.sub(id, 1, 1) .. string.sub(raw, 2, $STATE_SIZE)
    body = raw
  end
  local figures, last
  figures, last, at, n = unpack('>c${ID_SIZE}I7I7I7', raw)
  if figures ~= id or last > $LATEST or at > $TOP then break end
  if last > now then now = last end
  if at - last >= x and not debt then wide = last end
end
local ok = at - now <= x
if ok or wide then
  y, z, price, part = unpack('>I7I7I7I7', ask, pos + $ASK_SECOND)
  if n >= z and raw then break end
end
if wide then -- A key that owes more than the capacity, as of when it is put under the limit, had a larger one.
  local since = unpack('>I7', ask, pos + $ASK_SINCE)
  if since == 0 or since > now then wide = now elseif since > wide then wide = since end
  local u, p = x + price, y + part
  if p >= z then u, p = u + 1, p - z end
  if at - wide > u or at - wide == u and n > p then break end
end
if ok then
  if raw then mark, expiry = unpack('>c4I4', raw, $STATE_GEN) end
  if at < now then at, n = now, 0 end
  ok = at - now < x or n <= y
end
