at, n = at + price, n + part
if n >= z then at, n = at + 1, n - z end
needed = at
if n > 0 then needed = at + 1 end
