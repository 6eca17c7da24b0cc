-- Revoked requests stay revoked: a call for one may still arrive.
local function run(payload)
  if type(redis.pcall('ZCARD', key)) ~= 'number' then -- a value of another type
    call('DEL', key)
  else
    open()
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      local kind = sub(member, 1, 1)
      if kind ~= 'x' and kind ~= 'u' then call('ZREM', key, member) end
    end
    used = 0
  end
  if whole then hand_on(unpack('>I7', payload), '') end
  close()
  return '+'
end
