local request = ask
open()
local ends = exists and call('ZSCORE', key, 'p' .. request)
if ends then
  call('ZADD', key, 'NX', ends - hold_of(request) - $SINCE, 's' .. request)
  call('ZADD', key, reading + hold_of(request), 'p' .. request)
end
close()
return pack('>BI7', ends and 1 or 0, reading)
