-- A sliding counter without a debt, of figures whose products a double can hold: x is the
-- cost, y the units, z per.
m = 0
if raw then
  if #raw ~= 51 then break end
  m = unpack('>I7', raw, 45)
end
if at > now or n > y or m > y then break end
if now - at >= z then
  if now - at >= 2 * z then at, n, m = now, 0, 0 else at, n, m = at + z, 0, n end
  if m == 0 then at = now end
end
local weight = 0
if m > 0 then
  local product = m * (at + z - now)
  if product >= 9007199254740992 then break end
  local rest = math.fmod(product, z)
  weight = (product - rest) / z
  if rest > 0 then weight = weight + 1 end
end
ok = n + x + weight <= y or x == 0
