-- The value to write, and its time to live. 0 keeps the present time to live, because it is long enough.
life = 0
if not raw then
  mark, expiry = struct.pack('>I3B', argv[5] or reading % $GENERATIONS, 0), 0
elseif not mark then
  mark, expiry = unpack('>c4I4', raw, $STATE_GEN)
end
if expiry * 1000000 < needed then
  local ttl = 2 * (needed - reading) + (argv[4] or 0)
  life = math.ceil(ttl / 1000)
  expiry = math.min(math.floor((reading + ttl) / 1000000), $MAX_EXPIRY)
end
value = struct.pack('>c${ID_SIZE}I7I7I7c4I4', id, now, at, n, mark, expiry)
if m then value = value .. struct.pack('>I7', m) end
