-- A request for slots. how is $TRY, or $POLL or $LISTEN if the caller waits. ticket identifies
-- its place in line, and is 0 without one. After latest, unless that is 0, the caller has gone.
local function run(payload)
  local how, limit, ticket, latest = unpack('>BI7I7I7', payload)
  local request = sub(payload, 23)
  if latest > 0 and reading > latest then return pack('>BI7I7I7', $LATE, reading, 0, 0) end
  open()
  local scores = exists and call('ZMSCORE', key, 'x' .. request, 'p' .. request, 'g' .. request, 'w' .. request) or {}
  local state, mine, token = $WAITING, '', 0
  if scores[1] then
    state = $REVOKED
  elseif scores[2] or scores[3] then
    token = claim(request)
    state = $TAKEN
  else
    local process, n, place = process_of(request), slots_of(request), scores[4]
    local line = not place and first()
    if line or whole and not place then
      mine = hand_on(limit, process)
      line = first()
    end
    if place then
      ticket = place + $LINE
    elseif not line and fits(n, limit) and not (whole and whole.before()) then
      token = take(request)
      state = $TAKEN
    elseif how ~= $TRY and ticket == 0 then
      local last = call('ZREVRANGEBYSCORE', key, -$LINE / 2, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
      ticket = math.max(reading, last and last + $LINE + 1 or 0)
    end
    if state == $WAITING and how ~= $TRY then
      present(process, how == $LISTEN)
      call('ZADD', key, ticket - $LINE, 'w' .. request)
      mine = mine .. hand_on(limit, process)
      if call('ZSCORE', key, 'p' .. request) then
        token = claim(request)
        state = $TAKEN
      end
    end
  end
  close()
  return pack('>BI7I7I7', state, reading, ticket, token) .. mine
end
