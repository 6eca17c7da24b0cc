local n, hold = unpack('>I7I7', ask)
local id = string.sub(ask, 15)
tidy()
if not call('ZSCORE', since, id) then return pack('>B', 0) end
for i = 1, n do call('ZADD', slots, reading + hold, id .. ':' .. i) end
keep(slots, reading + hold)
keep(since, reading + hold)
return pack('>B', 1)
