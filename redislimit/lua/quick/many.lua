-- A decision on several keys, in the usual case, before anything else is even defined. The
-- answer is the verdict on all, the time, and for each key its verdict and its stored state.
local unpack = struct.unpack
local count = unpack('B', payload, 2)
local appends = false -- to a log
local seen, allowed, answer, keys, values, lives = 0, true, {}, {}, {}, {}
for i = 1, count do
  local pos = $HEAD_SIZE + 1 + $CHARGE_SIZE * (i - 1)
  local key, how = unpack('BB', payload, pos)
  key = KEYS[key]
  if how == 1 then
    --TOKEN
  elseif how == 2 then
    --LEAKY
  elseif how == 3 then
    --FIXED
  elseif how == 5 then
    --COUNTER
  elseif how == 4 then
    --LOG
  else
    break
  end
end
if seen == count then
  if allowed and appends and redis.acl_check_cmd then -- two commands write: no first without the second
    for i = 1, count do
      local command = lives[i] == -1 and 'append' or 'set'
      if values[i] and not redis.acl_check_cmd(command, keys[i], '') then
        return redis.error_reply("NOPERM this user has no permissions to run '" .. command .. "'")
      end
    end
  end
  for i = 1, allowed and count or 0 do
    local key, value, life = keys[i], values[i], lives[i]
    if value then
      --STORE
    end
  end
  answer[1] = (allowed and '+' or '-') .. sec .. '.' .. usec
  return table.concat(answer)
end
