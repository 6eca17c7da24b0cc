if string.byte(reply) > 1 then return reply end
local parts, after = { reply }, {}
for k = 1, #KEYS do after[k] = load(k) end
local left = {}
for i = 1, estimates and count or 0 do
  local key, kind, _, gen, cost, _, at, part = unpack('>BBBI3I7I7I7I7', payload, $HEAD_SIZE + 1 + $SETTLE_SIZE * (i - 1))
  local s = after[key]
  local counts = s and s.gen == gen and kind ~= HELD
  if counts and s.kind == FIXED then counts = at >= s.at end
  if counts and s.kind == CALENDAR then counts = part == s.m end
  if counts then left[key] = max(0, (left[key] or sums[key]) - cost) end
end
for k = 1, #KEYS do
  local s = after[k]
  if left[k] then setSum(SUMS[k], s, left[k]) end
  if s then
    local spent, f = spentOf(s), { units = s.units, per = s.per, cap = s.cap or s.units }
    local ran, regained = pcall(algorithms[s.kind].regained, f, s)
    parts[k + 1] = pack('>BBI7I7I7I7I7I7I7', spent and ran and 1 or 0, s.kind, s.units, s.per, sums[k], left[k] or sums[k], before[k], spent or 0, ran and max(regained, s.newest, reading) or 0)
  else
    parts[k + 1] = pack('>BBI7I7I7I7I7I7I7', 2, 0, 0, 0, 0, 0, 0, 0, 0)
  end
end
return table.concat(parts)
