-- In the usual case a calendar denies, by a booking or by the present window's
-- spending. All else is for the general case. x is the cost, y the units.
--LOAD
local id, x, y = unpack('>c${ID_SIZE}I7I7', payload, pos + $CHARGE_ID)
local ahead = unpack('>I7', payload, pos + $CHARGE_AHEAD)
if not raw or #raw < $WIDE_SIZE or long or x == 0 or ahead > 0 then break end
local figures, last, at, n, _, _, m = unpack('>c${ID_SIZE}I7I7I7I4I4I7', raw)
local from, to = unpack('>I7I7', payload, pos + $CHARGE_SIZE + 14)
if figures ~= id or last > reading or at > $TOP or n > $MOST or m > $TOP then break end
if reading < (from - $ORDINAL_ZERO) * 1000000 or reading >= (to - $ORDINAL_ZERO) * 1000000 then break end
local ok, body = false, string.sub(raw, 1, $WIDE_SIZE)
if length > $WIDE_SIZE then
  local bookings = (length - $WIDE_SIZE - $BASE_SIZE) / $BOOKING_SIZE
  if bookings < 1 or bookings % 1 > 0 or string.byte(raw, $WIDE_SIZE + $BASE_SIZE) % 2 == 1 then break end -- loose bookings
  local booked = string.sub(raw, -$BOOKING_SIZE, -$BOOKED_END)
  if unpack('>I7', booked) <= reading then break end
  body = body .. booked
elseif m ~= from or n + x <= y then
  break
end
