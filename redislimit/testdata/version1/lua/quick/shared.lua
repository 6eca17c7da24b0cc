-- Several decisions that share a call, each by itself, on one key, and of one kind. What is
-- unusual is left for the general case.
local unpack, stamp = struct.unpack, sec .. '.' .. usec
local answers, rest = {}, {}
for i = 1, #KEYS do
  local key, pos, answer = KEYS[i], 80 * i - 75, nil
  repeat
    --JUDGE
    if ok then
      --SPEND
      --STORE
      answer = '+' .. stamp .. body
    else
      answer = '-' .. stamp .. body
    end
  until true
  if not answer then rest[#rest + 1] = i end
  answers[i] = answer or ''
end
if #rest == 0 then return answers end
