-- A sliding counter, in debt until its window's end at most. A double
-- can hold its figures' products: x is the cost, y the units, z per.
m = 0
if raw then
  if #raw ~= $WIDE_SIZE then break end
  m = unpack('>I7', raw, $STATE_M)
end
if at > now or m > y or n > y and now - at >= z then break end
if now - at >= z then
  if now - at >= 2 * z then at, n, m = now, 0, 0 else at, n, m = at + z, 0, n end
  if m == 0 then at = now end
end
local weight = 0
if m > 0 then
  local product = m * (at + z - now)
  if product >= $TOP then break end
  local rest = math.fmod(product, z)
  weight = (product - rest) / z
  if rest > 0 then weight = weight + 1 end
end
ok = n + x + weight <= y or x == 0
