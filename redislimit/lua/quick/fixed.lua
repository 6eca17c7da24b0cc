-- A fixed window, in debt until its window ends at most: x is the cost, y the units, z per.
if raw and #raw ~= $STATE_SIZE or at > now or n > y and now - at >= z then break end
if now - at >= z then at, n = now, 0 end
ok = n + x <= y or x == 0
