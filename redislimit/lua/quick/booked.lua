-- Denies by a state with bookings, open reservations or units set aside, without unpacking it. A call before the last
-- booking is denied, however many bookings there are. So is a call if a token bucket or a fixed window has no room once all
-- bookings are due. All else is for the general case. The answer has a plain state's fields, and the last booking's instant.
if #raw > $WIDE_SIZE then
  if #raw < rest - 1 then break end
  local figures, last, until_, spent = unpack('>c${ID_SIZE}I7I7I7', raw)
  local cap, plain = 0, figures == id
  if not plain then
    if first ~= string.byte(id) or string.sub(figures, 2) ~= string.sub(id, 2) then break end
    if string.byte(raw) < $TOKEN then cap = unpack('>I7', raw, $STATE_SIZE + 1) end
  end
  if last > $LATEST or until_ > $TOP or spent > $TOP then break end
  local now, bookings, newest, booked = reading, 0, 0, ''
  if last > now then now = last end
  if long or length >= rest then
    bookings = (length + 1 - rest - $BASE_SIZE) / $BOOKING_SIZE
    if not long and (bookings < 1 or bookings % 1 > 0) or #raw < rest + $BASE_SIZE - 1 then break end
    newest = unpack('>I7', tail, #tail - $BOOKED)
    if newest > $TOP then break end
  end
  local full = newest > now
  if full then
    if string.byte(raw, rest + $BASE_SIZE - 1) % 2 == 1 then break end -- loose bookings
    if first == $TOKEN and cap == 0 then cap = unpack('>I7', raw, rest + $BASE_SIZE - 7) / 2 end
    booked = string.sub(tail, -$BOOKING_SIZE, -$BOOKED_END)
  end
  if first == $TOKEN then
    if spent >= z then break end
    full = full or until_ - now > x or until_ - now == x and spent > y
    full = full and (price > 0 or part > 0)
    --SAME
  elseif first == $FIXED then
    full = (full or until_ <= now and now - until_ < z and spent + x > y) and now - until_ < z and x > 0
  else
    full = full and now - until_ < z and x > 0
  end
  if full then
    local head = string.sub(raw, 1, first == $COUNTER and plain and $WIDE_SIZE or $STATE_SIZE)
    if not plain then
      head = string.sub(id, 1, 1) .. string.sub(head, 2)
      if first == $COUNTER then head = head .. string.sub(raw, rest - 7, rest - 1) end
    end
    return '-' .. sec .. '.' .. usec .. head .. booked
  end
end
