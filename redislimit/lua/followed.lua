-- A decision, followed by the sum of each key's open estimates before it.
local reply = decide(1, count)
local verdict = string.byte(reply)
if verdict > 1 then return reply end
local sums, more, parts = {}, {}, { reply }
for k = 1, #KEYS do
  sums[k] = sumOf(SUMS[k], states[k])
  parts[k + 1] = pack('>I7', sums[k])
end
if verdict == 1 and op == OPEN then
  for i = 1, count do
    local q = chargeAt(i)
    if q.kind ~= HELD and q.cost > 0 and string.byte(reply, 9 + $DIGEST_SIZE * (i - 1)) == 1 then
      more[q.key] = (more[q.key] or sums[q.key]) + q.cost
    end
  end
  for k, sum in pairs(more) do setSum(SUMS[k], states[k], sum) end
end
return table.concat(parts)
