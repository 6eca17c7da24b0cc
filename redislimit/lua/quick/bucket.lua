-- A bucket: what is owed may be x, and y of z µs, for the cost to fit.
if raw and #raw ~= 44 or n >= z then break end
if at < now then at, n = now, 0 end
ok = at - now < x or at - now == x and n <= y
