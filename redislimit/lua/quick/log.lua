-- A sliding log without a debt: x is the cost, y the units, z per. It is searched where it lies, and its digest is packed.
if n > 0 or at == 1 then break end -- a debt, or loose bookings
local size, base, sum, gone, newest = 0, 0, 0, 0, 0
local gen, changes, tail
local function record(i) -- its instant, the sum up to it, and the reading at which it was spent
  local from = $WIDE_SIZE + 1 + $RECORD_SIZE * (i - 1)
  if from + $RECORD_SIZE - 1 <= $FIRST_PART then return unpack('>I7I7I7', raw, from) end
  if not tail then tail = redis.call('GETRANGE', key, length - $TAIL_PART, length - 1) end -- which has what a call with bookings needs, most often
  local back = length - from
  if back < $TAIL_PART then return unpack('>I7I7I7', tail, $TAIL_PART - back) end
  return unpack('>I7I7I7', redis.call('GETRANGE', key, from - 1, from + $RECORD_SIZE - 2))
end
if raw then
  size = (length - $WIDE_SIZE) / $RECORD_SIZE
  if size ~= math.floor(size) then break end
  gen, changes, expiry, base = unpack('>I3BI4I7', raw, $STATE_GEN)
  sum = base
  if size > 0 then
    local last
    newest, sum, last = record(size)
    if last > now then now = last end
  end
else
  gen, changes, expiry = argv[5] or reading % $GENERATIONS, 0, 0
end
local before = base
if size > 0 and record(1) <= now - z then -- the last past spending
  local low, high = 1, size
  while low < high do
    local mid = math.ceil((low + high) / 2)
    if record(mid) <= now - z then low = mid else high = mid - 1 end
  end
  local _
  gone, _, before = low, record(low)
end
local live = sum - before
if live < 0 or base > sum or sum + x > $TOP or newest > $TOP or now > $LATEST then break end
at = newest > now and newest or now -- behind the bookings
local function freed(at, room) -- the instant, from at on, at which no more than room counts
  if live <= room then return at end
  local low, high = math.max(gone + 1, size - room), size -- each has a unit at least
  local mid = low
  while low < high do -- the first one whose passing leaves enough room
    local _, upto = record(mid)
    if sum - upto <= room then high = mid else low = mid + 1 end
    mid = math.floor((low + high) / 2)
  end
  return math.max(at, record(low) + z)
end
at = freed(at, y - x)
ok = at <= now or x == 0
local fits = ok
if not ok then
  local ahead = unpack('>I7', payload, pos + $CHARGE_AHEAD)
  ok = ahead >= $MOST or at - ahead <= reading
end
local next = at -- when one more unit fits after the decision, if none remains
if ok and x == y then
  next = at + z
elseif ok then
  next = freed(math.max(at, newest), y - 1 - x)
elseif x > 1 then
  next = freed(newest > now and newest or now, y - 1)
end
body = struct.pack('>BI3BI7I7I7I7I7I7', $LOG, gen, changes, now, at, live, newest, live, next)
if not fits then
  if ok and size - gone >= y + $MAX_QUEUED then -- the general case's answer
    return struct.pack('>BI7B', 0, reading, $FULL) .. string.sub(body, 2) .. struct.pack('>I7', record(gone + 1) + z)
  end
end
