-- A bucket: the cost fits while the debt is at most x µs, and y of z more. The price is whole µs and a part of one.
--LOAD
local id, x, y, z, price, part = unpack('>c${ID_SIZE}I7I7I7I7I7', payload, pos + $CHARGE_ID)
local now, at, n, body = reading, reading, 0, raw or ''
local m, mark, expiry, needed, value, life
if raw then
  local debt = #raw ~= $STATE_SIZE
  if debt then
    if #raw ~= $STATE_SIZE + $ASIDE_SIZE then
      --BOOKED
      break
    end
    local cap, aside = unpack('>I7I7', raw, $STATE_SIZE + 1)
    local cost, _, same = unpack('>I7I7I7', payload, pos + $CHARGE_COST)
    if aside > 0 or cap ~= same or cost == 0 or string.byte(raw) + $ASIDE ~= string.byte(id) then break end
    raw = string.sub(id, 1, 1) .. string.sub(raw, 2, $STATE_SIZE)
    body = raw
  end
  local figures, last
  figures, last, at, n = unpack('>c${ID_SIZE}I7I7I7', raw)
  if figures ~= id or last > $LATEST or at > $TOP or n >= z then break end
  if last > now then now = last end
  local over = at - last - x - price
  if (over > 0 or over == 0 and n > 0) and not debt then
    -- If a key owes more than the capacity when it is put under the limit, its own capacity was larger.
    local since = unpack('>I7', payload, pos + $CHARGE_SINCE)
    if since == 0 or since > now then last = now elseif since > last then last = since end
    local u, p = x + price, y + part
    if p >= z then u, p = u + 1, p - z end
    if at - last > u or at - last == u and n > p then break end
  end
end
local ok = at - now <= x
if ok then
  if at < now then at, n = now, 0 end
  ok = at - now < x or n <= y
end
