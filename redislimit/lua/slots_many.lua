-- One call for several keys: the requests, each after its length. The answers have the same form.
if whole then whole.begin() end
local answers, i, at = {}, 1, 1
while at <= #payload do
  local length = unpack('>I7', sub(payload, at, at + 6))
  local one = sub(payload, at + 7, at + 6 + length)
  if whole then level, one = unpack('>I7', one), sub(one, 8) end
  enter(KEYS[whole and i > 1 and i + 2 or i])
  local answer = run(one)
  answers[i] = pack('>I7', #answer) .. answer
  i, at = i + 1, at + 7 + length
end
if whole then whole.finish() end
return table.concat(answers)
