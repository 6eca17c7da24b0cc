local n, limit, hold, patience = unpack('>I7I7I7I7', ask)
local id = string.sub(ask, 29)
local me = id .. ':' .. string.format('%.0f', n)
tidy()

local function take()
  call('ZREM', line, me)
  call('ZREM', places, me)
  add(since, reading + hold, 'NX', reading, id)
  add(slots, reading + hold, reading + hold, id .. ':1')
  for i = 2, n do call('ZADD', slots, reading + hold, id .. ':' .. i) end
  return pack('>BI7', 1, 0)
end

if call('ZSCORE', since, id) then return take() end -- it has taken them already, in a call that was not answered
local free = limit - call('ZCARD', slots)
local rank = patience > 0 and call('ZRANK', line, me)
local before = rank or call('ZCARD', line)
local ahead = before
if before > 0 and before < limit then
  ahead = 0
  for _, caller in ipairs(call('ZRANGE', line, 0, before - 1)) do ahead = ahead + wanted(caller) end
end
if ahead + n <= free then return take() end
if patience > 0 then
  if not rank then
    local last = call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]
    add(line, reading + patience, math.max(reading, (tonumber(last) or 0) + 1), me)
  end
  keep(line, reading + patience)
  add(places, reading + patience, reading + patience, me)
end
return pack('>BI7', 0, math.min(ahead + n, 2 ^ 52))
