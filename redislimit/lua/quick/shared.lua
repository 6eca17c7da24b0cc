-- Several decisions sharing a call. Each is on one key, and all are of one kind. Unusual cases are left for the general
-- script. A decision writes at most once, last: if its command fails, the decision has charged nothing, and has no reply.
local unpack, stamp = struct.unpack, sec .. '.' .. usec
local answers, rest = {}, {}
local function one(i)
  local key, pos = KEYS[i], $HEAD_SIZE + 1 + $CHARGE_SIZE * (i - 1)
  repeat
    --JUDGE
    if ok then
      --SPEND
      --STORE
      return '+' .. stamp .. body
    end
    return '-' .. stamp .. body
  until true
  rest[#rest + 1] = i
  return ''
end
for i = 1, #KEYS do
  local ran, answer = pcall(one, i)
  answers[i] = ran and answer or ''
end
if #rest == 0 then return answers end
