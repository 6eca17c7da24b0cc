-- A decision on several keys, in the usual case, before anything else is even defined. The
-- answer is the verdict on all, the time, and for each key its verdict and the state as it
-- was stored.
local unpack, pack = struct.unpack, struct.pack
local count = unpack('B', ask, 2)
local seen, allowed, answer, keys, values, lives = 0, true, {}, {}, {}, {}
for i = 1, count do
  local pos = 80 * i - 75
  local key, how, id, x, y, z = unpack('>BBc15I7I7I7', ask, pos - 2)
  if how == 0 then break end -- a shadow layer's
  key = KEYS[key]
  local raw = redis.pcall('GET', key)
  --READ
  if how <= 2 then
    --BUCKET
    if how == 2 then
      --LEAKY
    end
    if ok and x < 9007199254740992 then
      --SPEND_BUCKET
    end
  elseif how == 3 then
    --FIXED
    if ok and x > 0 then
      --SPEND_FIXED
    end
  elseif how == 5 then
    --COUNTER
    if ok and x > 0 then
      --SPEND_COUNTER
    end
  else
    --LOG
    if ok and x > 0 then
      --SPEND_LOG
    end
  end
  if needed and not value then
    --WRITE
  end
  allowed = allowed and ok
  keys[i], values[i], lives[i] = key, value, life
  answer[2 * i], answer[2 * i + 1] = ok and '+' or '-', body
  seen = i
end
if seen == count then
  for i = 1, allowed and count or 0 do
    local key, value, life = keys[i], values[i], lives[i]
    if value then
      --STORE
    end
  end
  answer[1] = (allowed and '+' or '-') .. sec .. '.' .. usec
  return table.concat(answer)
end
