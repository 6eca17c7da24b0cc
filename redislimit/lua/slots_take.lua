-- A request for slots. How is $TRY, or $POLL or $LISTEN if the caller waits; ticket is that of its place in line, 0 without
-- one. After latest, if that is not 0, the caller has gone.
local how, limit, ticket, latest = unpack('>BI7I7I7', ask)
local request = sub(ask, 23)
if latest > 0 and reading > latest then return pack('>BI7I7', $LATE, reading, 0) end
open()
local state, mine = $WAITING, ''
if exists and call('ZSCORE', key, 'x' .. request) then
  state = $REVOKED
elseif exists and claim(request) then
  state = $TAKEN
else
  local process = process_of(request)
  local place = exists and call('ZSCORE', key, 'w' .. request)
  if not place and first() then mine = serve(limit, process) end
  if place then
    ticket = place + $LINE
  elseif used + slots_of(request) <= limit and not first() then
    add(reading + hold_of(request), 'p' .. request)
    used = used + slots_of(request)
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
