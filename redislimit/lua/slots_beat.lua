-- The beat of a waiting process. It shows that the process is alive, tests its channel, and
-- returns the states and tokens of its oldest requests. The requests have the same length.
local function run(payload)
  local how, limit, count = unpack('>BI7I7', payload)
  local process = sub(payload, 16, 15 + $PROCESS)
  local length = count > 0 and (#payload - 15 - $PROCESS) / count or 0
  open()
  local channel = $SILENT
  if how == $LISTEN then
    local receivers = redis.pcall('SPUBLISH', key .. '!' .. process, '')
    if type(receivers) == 'number' then
      channel = receivers > 0 and $RECEIVED or $SILENT
    elseif not string.find(receivers.err, 'non local', 1, true) then -- this error ends when the slot has moved
      channel = $REFUSED
    end
  end
  present(process, channel == $RECEIVED)
  local states = {}
  for i = 0, count - 1 do
    local from = 16 + $PROCESS + i * length
    local request = sub(payload, from, from + length - 1)
    local state, token = $LOST, claim(request)
    if token then
      state = $TAKEN
    elseif call('ZSCORE', key, 'w' .. request) then
      state = $WAITING
    end
    states[#states + 1] = pack('>BI7', state, token or 0)
  end
  local mine = hand_on(limit, process)
  close()
  return pack('>BI7', channel, reading) .. table.concat(states) .. mine
end
