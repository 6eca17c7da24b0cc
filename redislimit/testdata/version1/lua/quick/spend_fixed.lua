if n == 0 then at = now end
n, needed = n + x, at + z
