-- What every usual case ends with: what to write, should all be allowed, and for how
-- long: -1 appends, 0 keeps the time to live, which is long enough.
if cost == 0 then ok = true end
if ok and cost > 0 and op ~= 2 and kind ~= 0xFB then
  life = 0
  if not raw or expiry * 1000000 < needed then
    local ttl = 2 * (needed - reading) + unpack('>I7', ARGV[1], 12)
    life = math.ceil(ttl / 1000)
    expiry = math.min(math.floor((reading + ttl) / 1000000), 4294967295)
  end
  value = pack('>BI3BI7I7I7I4I7I7', kind, gen, changes, now, units, per, expiry, at, n)
  if kind == 0xFC then value = value .. pack('>I7', m) end
end
