    if full and cap > 0 then
      full = cap == unpack('>I7', payload, pos + $CHARGE_COST + 14)
    elseif full then -- if a key owes more than the capacity when it is put under the limit, its own capacity was larger
      local since, most, frac = unpack('>I7', payload, pos + $CHARGE_SINCE), x + price, y + part
      if frac >= z then most, frac = most + 1, frac - z end
      local as = now
      if since > 0 then as = math.min(now, math.max(last, since)) end
      local owes, over, per = until_, spent, unpack('>I7', raw, $STATE_PER)
      if newest > 0 then owes, over = unpack('>I7I7', raw, rest) end
      if long then
        raw = redis.call('GETRANGE', key, '0', '$DUE_END')
        if not noted then length = redis.call('STRLEN', key) end
        bookings = (length + 1 - rest - $BASE_SIZE) / $BOOKING_SIZE
      end
      for i = 0, newest > 0 and bookings - 1 or -1 do -- due bookings are spent
        local from = rest + $BASE_SIZE + $BOOKING_SIZE * i
        if from + $BOOKING_SIZE - 1 > #raw then -- more than usual
          full = false
          break
        end
        local at, cost = unpack('>I7I7', raw, from)
        if at > as then break end
        if cost > $MOST then cost = cost - $MOST end
        local product = cost * per
        if product >= $TOP then full = false end
        if owes < at then owes, over = at, 0 end
        local left = math.fmod(product, z)
        owes, over = owes + (product - left) / z, over + left
        if over >= z then owes, over = owes + 1, over - z end
      end
      if owes - as > most or owes - as == most and over > frac then full = false end
    end
