-- A bucket: what is owed may be x µs for the cost to fit, and y of z more. Where whole µs
-- deny it, nothing else is read.
local raw = redis.pcall('GET', key)
local id, x = unpack('>c15I7', ask, pos)
local now, at, n, body = reading, reading, 0, raw or ''
local m, mark, expiry, needed, value, life, y, z, price, part
if raw then
  if #raw ~= 44 then break end -- the table of an error has no length
  local figures, last
  figures, last, at = unpack('>c15I7I7', raw)
  if figures ~= id or last > 5851439254740992 or at > 9007199254740992 then break end
  if last > now then now = last end
end
local ok = at - now <= x
if ok then
  y, z, price, part = unpack('>I7I7I7I7', ask, pos + 22)
  if raw then
    n, mark, expiry = unpack('>I7c4I4', raw, 30)
    if n >= z then break end
  end
  if at < now then at, n = now, 0 end
  ok = at - now < x or n <= y
end
