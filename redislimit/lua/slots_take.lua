-- A request for slots. How is $TRY, or $POLL or $LISTEN if the caller waits; ticket identifies its place in line, 0 without
-- one. After latest, if that is not 0, the caller has gone.
local how, limit, ticket, latest = unpack('>BI7I7I7', ask)
local request = sub(ask, 23)
if latest > 0 and reading > latest then return pack('>BI7I7', $LATE, reading, 0) end
open()
local scores = exists and call('ZMSCORE', key, 'x' .. request, 'p' .. request, 'g' .. request, 'w' .. request) or {}
local state, mine = $WAITING, ''
if scores[1] then
  state = $REVOKED
elseif scores[2] or scores[3] then
  claim(request)
  state = $TAKEN
else
  local process, n, place = process_of(request), slots_of(request), scores[4]
  local line = not place and first()
  if line then
    mine = serve(limit, process)
    line = first()
  end
  if place then
    ticket = place + $LINE
  elseif used + n <= limit and not line then
    add(reading + hold_of(request), 'p' .. request)
    used = used + n
    state = $TAKEN
  elseif how ~= $TRY and ticket == 0 then
    local last = call('ZREVRANGEBYSCORE', key, -$LINE / 2, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    ticket = math.max(reading, last and last + $LINE + 1 or 0)
  end
  if state == $WAITING and how ~= $TRY then
    present(process, how == $LISTEN)
    call('ZADD', key, ticket - $LINE, 'w' .. request)
    mine = mine .. serve(limit, process)
    if call('ZSCORE', key, 'p' .. request) then state = $TAKEN end
  end
end
close()
return pack('>BI7I7', state, reading, ticket) .. mine
