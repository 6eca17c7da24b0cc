-- A usual key is new, or in a plain state of the kind and the call's figures. x is the cost, y the units, z per.
local id, x, y, z = unpack('>c${ID_SIZE}I7I7I7', payload, pos + $CHARGE_ID)
local now, at, n, body = reading, reading, 0, raw or ''
local ok, m, mark, expiry, needed, value, life
if raw then
  if #raw < $STATE_SIZE then break end -- so is an error's table
  --BOOKED
  local figures, last
  figures, last, at, n = unpack('>c${ID_SIZE}I7I7I7', raw)
  if figures ~= id or last > $LATEST or at > $TOP then break end
  if last > now then now = last end
end
