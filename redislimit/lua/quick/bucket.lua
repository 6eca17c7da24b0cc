-- A bucket: fits at once, or is denied. A booking is not the usual case.
if raw and #raw ~= 44 or n >= units then break end
local u, p = at, n
if u < now then u, p = now, 0 end
local leaves = u
if p > 0 then leaves = u + 1 end
u, p = u + pu, p + pp
if p >= units then u, p = u + 1, p - units end
ok = u - now < fu or u - now == fu and p <= fp
if kind == 0xF9 and ahead < 4503599627370496 and leaves > now and leaves - ahead > reading then
  ok = false
elseif not ok and ahead > 0 and kind == 0xF8 then
  break
end
at, n, needed = u, p, p > 0 and u + 1 or u
