-- A request gives back its slots, or leaves the line, and learns whether it had slots. If it is revoked, calls for it that arrive later take nothing.
local revoked, limit = unpack('>BI7', ask)
local request = sub(ask, 9)
open()
local mine, held = '', 0
if exists then
  if call('ZREM', key, 'p' .. request, 'g' .. request) > 0 then
    used, held = used - slots_of(request), 1
    call('ZREM', key, 's' .. request)
  else
    call('ZREM', key, 'w' .. request)
  end
end
if revoked == 1 then add(reading + $REVOKED_FOR, 'x' .. request) end
if first() then
  local process = process_of(request)
  call('ZADD', key, 'XX', reading + silence_of(process), 'o' .. process)
  mine = serve(limit, process)
end
close()
return pack('>BI7', held, reading) .. mine
