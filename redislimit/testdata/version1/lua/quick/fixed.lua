-- A fixed window without a debt: x is the cost, y the units, z per.
if raw and #raw ~= 44 or at > now or n > y then break end
if now - at >= z then at, n = now, 0 end
ok = n + x <= y
