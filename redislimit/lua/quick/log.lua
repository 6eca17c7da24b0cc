-- A sliding log without a debt: x is the cost, y the units, z per.
-- The script searches it without unpacking it, and packs its digest.
local size, base, sum, newest = 0, 0, 0, 0
local gen, changes, oldest, upto, others, closer -- upto counts the oldest spending, and others all but the newest
if raw then
  if #raw < $WIDE_SIZE then break end -- so is an error's table
  local figures, last
  if #raw == $WIDE_SIZE then
    figures, last, at, n, gen, changes, expiry, base = unpack('>c${ID_SIZE}I7I7I7I3BI4I7', raw)
    sum = base
  else
    size = long and math.huge or (length - $WIDE_SIZE) / $RECORD_SIZE
    if not long and size % 1 > 0 then break end
    figures, last, at, n, gen, changes, expiry, base, oldest, upto = unpack('>c${ID_SIZE}I7I7I7I3BI4I7I7I7', raw)
    local before, _, latest
    before, _, newest, sum, latest = unpack('>I7I7I7I7I7', tail, #tail - $RECORD_SIZE - 13)
    others = size == 1 and base or before
    if latest > last then last = latest end
  end
  if figures ~= id or last > $LATEST or at > $TOP or n > 0 or at == 1 then break end -- a debt, or loose bookings
  if last > now then now = last end
else
  gen, changes, expiry = argv[5] or reading % $GENERATIONS, 0, 0
end
if base > sum or sum + x > $TOP or newest > $TOP or now > $LATEST then break end
local gone, before, live, room = 0, base, sum - base, y - x
local behind = newest > now and newest or now -- the bookings
local ahead, next, record, freed, wait -- next is when one more unit fits after the decision, if none remains
at = behind
if size == 0 or oldest > now - z then -- none is past
  if live < room then
    next = at
  elseif live > room and x > 0 and size > 0 then
    ahead = unpack('>I7', payload, pos + $CHARGE_AHEAD)
    if ahead == 0 and now == reading then -- if the denial lasts until the oldest or the newest has passed, the answer is copied from the state
      if sum - upto <= room then
        wait = string.sub(raw, $WIDE_SIZE + 1, $WIDE_SIZE + 7)
      elseif x == 1 and sum - others > room then
        wait = string.sub(tail, -$RECORD_SIZE, -$RECORD_SUM)
      end
    end
  end
end
if wait then
  ok, body = false, '\$LOG_DENIED' .. string.sub(raw, $STATE_GEN, $WIDE_SIZE) .. wait .. string.sub(tail, -$RECORD_SIZE, -$RECORD_LAST)
else
  if long then
    if not noted then length = redis.call('STRLEN', key) end
    size = (length - $WIDE_SIZE) / $RECORD_SIZE
    if size % 1 > 0 then break end
  end
  if not next then -- a search
    function record(i) -- its instant, the sum up to it, and the reading at which it was spent
      local from = $WIDE_SIZE + 1 + $RECORD_SIZE * (i - 1)
      if from + $RECORD_SIZE - 1 <= #raw then return unpack('>I7I7I7', raw, from) end
      local back = length - from
      if back < $TAIL_PART then -- most often enough for a call with bookings
        closer = closer or noted and redis.call('GETRANGE', key, '-$NOTED_TAIL', '-$BEFORE_NOTE') or redis.call('GETRANGE', key, '-$TAIL_PART', '-1')
        return unpack('>I7I7I7', closer, $TAIL_PART - back)
      end
      return unpack('>I7I7I7', redis.call('GETRANGE', key, from - 1, from + $RECORD_SIZE - 2))
    end
    if size > 0 and oldest <= now - z then -- the last past spending
      local low, high, past = 1, size, now - z
      if long then -- it is among the first, most often
        high = $FIRST_RECORDS
        if record(high) <= past then low, high = high, size end
      end
      while low < high do
        local mid = math.ceil((low + high) / 2)
        if record(mid) <= past then low = mid else high = mid - 1 end
      end
      local _
      gone, _, before = low, record(low)
      live = sum - before
      if live < 0 then break end
    end
    function freed(at, room) -- the first instant from at on when at most room counts
      if live <= room then return at end
      local low, high = math.max(gone + 1, size - room), size -- each has a unit at least
      local mid = low
      while low < high do -- the first spending that leaves enough room when it has passed
        local _, upto = record(mid)
        if sum - upto <= room then high = mid else low = mid + 1 end
        mid = math.floor((low + high) / 2)
      end
      return math.max(at, record(low) + z)
    end
    at = freed(behind, room)
  end
  ok = at <= now or x == 0
  local fits = ok
  if not ok then
    ahead = ahead or unpack('>I7', payload, pos + $CHARGE_AHEAD)
    ok = ahead >= $MOST or at - ahead <= reading
  end
  if not next then
    next = at
    if ok and x == y then
      next = at + z
    elseif ok then
      next = freed(math.max(at, newest), y - 1 - x)
    elseif x > 1 then
      next = freed(behind, y - 1)
    end
  end
  body = struct.pack('>BI3BI7I7I7I7I7I7', $LOG, gen, changes, now, at, live, newest, live, next)
  if ok and not fits and size - gone >= y + $MAX_QUEUED then -- the general case's answer
    if gone > 0 then oldest = record(gone + 1) end
    return struct.pack('>BI7B', 0, reading, $FULL) .. string.sub(body, 2) .. struct.pack('>I7', oldest + z)
  end
end
