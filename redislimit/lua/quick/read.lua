-- What every usual case begins with: a key that is new, or in a plain state of the kind
-- and the figures of the call. Each key is looked at in a block that break leaves, with
-- nothing written, as soon as something is unusual.
if shadow ~= 0 then break end
local gen, changes, now, at, n, m, newest, expiry = false, 0, reading, reading, 0, 0, 0, 0
local ok, needed, value, life
if raw then
  local size = type(raw) == 'string' and #raw
  if size ~= 44 and size ~= 51 and (kind ~= 0xFB or not size or size < 51) then break end
  local tag, last, u, p
  tag, gen, changes, last, u, p, expiry, at, n = unpack('>BI3BI7I7I7I4I7I7', raw)
  if tag ~= kind or u ~= units or p ~= per or last > 5851439254740992 or at > 9007199254740992 then break end
  if last > now then now = last end
end
if not gen then gen = unpack('>I3', ARGV[1], 9) end
local was, had = at, n -- what the answer tells is the state before the cost is spent
