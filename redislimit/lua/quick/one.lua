-- A decision on one key, in the usual case, before anything else is even defined. It
-- answers with the state as it was stored, which is quicker than to pack it anew: 5 for
-- a denial and 6 for what is allowed, and the reading before it.
local unpack, pack = struct.unpack, struct.pack
local op, reading, kind, shadow, cost, units, per, pu, pp, fu, fp, ahead =
  unpack('>BI7xxxxxxxxxxxxBBI7I7I7xxxxxxxI7I7I7I7I7', ARGV[1])
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
  --REPLY
until true
