-- A denial by a state with bookings, open reservations or units set aside, read where it lies: a call is denied before the last
-- booking, however many there are, and by a token bucket or a fixed window that has no room once all are due. All else is for
-- the general case, whose answer this is.
if #raw > $WIDE_SIZE then
  local cap, before = 0, 0
  local figures, last, until_, spent, gen, changes = unpack('>c14I7I7I7I3B', raw, 2)
  if #raw < rest - 1 then break end
  if string.byte(raw) < $TOKEN then cap = unpack('>I7', raw, $STATE_SIZE + 1) end
  if first == $COUNTER then before = unpack('>I7', raw, rest - 7) end
  local bookings, newest = (length + 1 - rest - $BASE_SIZE) / $BOOKING_SIZE, 0
  if first ~= string.byte(id) or figures ~= string.sub(id, 2) or last > $LATEST or until_ > $TOP or spent > $TOP then break end
  if length + 1 ~= rest then
    if bookings < 1 or bookings ~= math.floor(bookings) then break end
    newest = unpack('>I7', length <= #raw and string.sub(raw, length + 1 - $BOOKING_SIZE, length) or redis.call('GETRANGE', key, length - $BOOKING_SIZE, length - 1))
    if newest > $TOP or #raw < rest + $BASE_SIZE - 1 then break end
  end
  local now = math.max(reading, last)
  local full = newest > now
  if full then
    local under = unpack('>I7', raw, rest + $BASE_SIZE - 7)
    if math.fmod(under, 2) == 1 then break end -- loose bookings
    if cap == 0 then cap = under / 2 end
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
    return struct.pack('>BI7BI3BI7I7I7I7I7I7', 0, reading, 0, gen, changes, now, until_, spent, before, newest > now and newest or 0, 0)
  end
end
