-- The beat of a waiting process: it shows that the process is alive, tests its channel, and returns the states of its oldest
-- requests.
local how, limit = unpack('>BI7', ask)
local process = sub(ask, 9, 8 + $PROCESS)
open()
local channel = $SILENT
if how == $LISTEN then
  local receivers = redis.pcall('SPUBLISH', key .. '!' .. process, '')
  if type(receivers) == 'number' then
    channel = receivers > 0 and $HEARD or $SILENT
  elseif not string.find(receivers.err, 'non local', 1, true) then -- which passes when the slot has moved
    channel = $REFUSED
  end
end
present(process, channel == $HEARD)
local states = {}
for i = 9 + $PROCESS, #ask, $REQUEST do
  local request = sub(ask, i, i + $REQUEST - 1)
  local state = $LOST
  if claim(request) then
    state = $TAKEN
  elseif call('ZSCORE', key, 'w' .. request) then
    state = $WAITING
  end
  states[#states + 1] = string.char(state)
end
local mine = serve(limit, process)
close()
return pack('>BI7', channel, reading) .. table.concat(states) .. mine
