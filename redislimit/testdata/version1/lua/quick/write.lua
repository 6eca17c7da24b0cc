-- What to write, and for how long: 0 keeps the time to live, which is long enough.
life = 0
if not raw then
  mark, expiry = struct.pack('>I3B', argv[5] or reading % 16777216, 0), 0
elseif not mark then
  mark, expiry = unpack('>c4I4', raw, 37)
end
if expiry * 1000000 < needed then
  local ttl = 2 * (needed - reading) + (argv[4] or 0)
  life = math.ceil(ttl / 1000)
  expiry = math.min(math.floor((reading + ttl) / 1000000), 4294967295)
end
value = struct.pack('>c15I7I7I7c4I4', id, now, at, n, mark, expiry)
if m then value = value .. struct.pack('>I7', m) end
