-- A request gives back its slots, or leaves the line. If it is revoked, calls for it that arrive later take nothing.
local revoked, limit = unpack('>BI7', ask)
local request = sub(ask, 9)
open()
local mine = ''
if exists then
  if call('ZREM', key, 'p' .. request, 'g' .. request) > 0 then
    used = used - slots_of(request)
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
return pack('>BI7', 1, reading) .. mine
