-- A request gives back its slots, or leaves the line. If it is revoked, calls for it that arrive later take nothing.
local revoked, limit = unpack('>BI7', ask)
local request = sub(ask, 9)
open()
local mine = ''
if exists then
  call('ZADD', key, 'XX', reading + silence_of(process_of(request)), 'o' .. process_of(request))
  if call('ZREM', key, 'p' .. request, 'g' .. request) > 0 then used = used - slots_of(request) end
  call('ZREM', key, 'w' .. request, 's' .. request)
end
if revoked == 1 then add(reading + $REVOKED_FOR, 'x' .. request) end
if exists then mine = serve(limit, process_of(request)) end
close()
return pack('>BI7', 1, reading) .. mine
