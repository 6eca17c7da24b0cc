-- A decision on several keys, in the usual case, before anything else is even defined.
local unpack, pack, call = struct.unpack, struct.pack, redis.call
local op, reading, count = unpack('>BI7xxxxxxxxxxB', ARGV[1])
if reading == 0 then
  local t = call('TIME')
  reading = t[1] * 1000000 + t[2]
end

local seen, allowed, pos, reply = 0, true, 20, {}
local keys, values, lives = {}, {}, {}
for i = 1, count do
  local key, kind, shadow, cost, units, per, pu, pp, fu, fp, ahead
  key, kind, shadow, cost, units, per, pu, pp, fu, fp, ahead, pos = unpack('>BBBI7I7I7xxxxxxxI7I7I7I7I7xxxxxxx', ARGV[1], pos)
  local raw = redis.pcall('GET', KEYS[key])
  --READ
  if kind <= 0xF9 then
    --BUCKET
  elseif kind == 0xFA then
    --FIXED
  elseif kind == 0xFC then
    --COUNTER
  else
    --LOG
  end
  --WRITE
  allowed = allowed and ok
  keys[i], values[i], lives[i] = KEYS[key], value or false, life
  reply[i + 1] = pack('>BI3BI7I7I7I7I7', ok and 1 or 0, gen, changes, now, was, had, m, 0)
  seen = i
end
if seen == count then
  for i = 1, allowed and count or 0 do
    local value, life = values[i], lives[i]
    if not value then -- it costs nothing
    elseif life > 0 then
      call('SET', keys[i], value, 'PX', life)
    elseif life == 0 then
      call('SET', keys[i], value, 'KEEPTTL')
    else
      call('APPEND', keys[i], value)
    end
  end
  reply[1] = pack('>BI7', allowed and 1 or 0, reading)
  return table.concat(reply)
end
