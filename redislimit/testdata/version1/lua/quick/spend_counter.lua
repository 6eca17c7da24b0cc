if n == 0 and m == 0 then at = now end
n, needed = n + x, at + 2 * z
