-- A leaky bucket lets a cost out when all before it has left. That may be too late.
if ok and price > 0 or ok and part > 0 then
  local leaves, ahead = at, unpack('>I7', payload, pos + $CHARGE_AHEAD)
  if n > 0 then leaves = at + 1 end
  ok = leaves <= now or ahead >= $MOST or leaves - ahead <= reading
end
