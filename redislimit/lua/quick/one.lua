-- A decision on one key, in the usual case, before anything else is even defined.
local unpack, pack, fmod = struct.unpack, struct.pack, math.fmod
local op, reading, salt, grace, _, _, kind, shadow, cost, units, per, cap, pu, pp, fu, fp, ahead =
  unpack('>BI7I3I7BBBBI7I7I7I7I7I7I7I7I7', ARGV[1])
if reading == 0 then
  local t = redis.call('TIME')
  reading = t[1] * 1000000 + t[2]
end
local allowed = true
repeat
  local raw = redis.pcall('GET', KEYS[1])
  --READ
  --KIND
  --WRITE
  if value then
    if life > 0 then
      redis.call('SET', KEYS[1], value, 'PX', life)
    elseif life == 0 then
      redis.call('SET', KEYS[1], value, 'KEEPTTL')
    else
      redis.call('APPEND', KEYS[1], value)
    end
  end
  local verdict = ok and 1 or 0
  return pack('>BI7BI3BI7I7I7I7I7', verdict, reading, verdict, gen, changes, now, was, had, m, 0)
until true
