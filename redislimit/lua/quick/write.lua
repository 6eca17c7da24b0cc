-- What to write, and for how long: 0 keeps the time to live, which is long enough.
local mark, expiry
life = 0
if raw then
  mark, expiry = unpack('>c4I4', raw, 37)
else
  mark, expiry = pack('>I3B', ARGV[5] or reading % 16777216, 0), 0
end
if expiry * 1000000 < needed then
  local ttl = 2 * (needed - reading) + (ARGV[4] or 0)
  life = math.ceil(ttl / 1000)
  expiry = math.min(math.floor((reading + ttl) / 1000000), 4294967295)
end
value = pack('>c15I7I7I7c4I4', id, now, at, n, mark, expiry)
if m then value = value .. pack('>I7', m) end
