-- A sliding counter without a debt, of figures whose products a double can hold.
if raw then
  if #raw ~= 51 then break end
  m = unpack('>I7', raw, 45)
end
if at > now or n > units or m > units then break end
if now - at >= per then
  if now - at >= 2 * per then at, n, m = now, 0, 0 else at, n, m = at + per, 0, n end
  if m == 0 then at = now end
end
was, had = at, n
local weight = 0
if m > 0 then
  local product = m * (at + per - now)
  if product >= 9007199254740992 then break end
  local rest = math.fmod(product, per)
  weight = (product - rest) / per
  if rest > 0 then weight = weight + 1 end
end
n = n + cost
ok = n + weight <= units
if not ok and ahead > 0 then break end
if had == 0 and m == 0 then at = now end
needed = at + 2 * per
