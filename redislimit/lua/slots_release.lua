local n = unpack('>I7', ask)
local id = string.sub(ask, 8)
local me = id .. ':' .. string.format('%.0f', n)
call('ZREM', line, me)
call('ZREM', places, me)
if call('ZREM', since, id) == 1 then
  for i = 1, n do call('ZREM', slots, id .. ':' .. i) end
end
return pack('>B', 1)
