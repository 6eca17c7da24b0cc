-- A fixed window without a debt.
if raw and #raw ~= 44 or at > now or n > units then break end
if now - at >= per then at, n = now, 0 end
was, had = at, n
n = n + cost
ok = n <= units
if not ok and ahead > 0 then break end
if had == 0 then at = now end
needed = at + per
