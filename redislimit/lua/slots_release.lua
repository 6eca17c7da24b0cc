-- A request gives back its slots, or leaves the line, and the answer states whether
-- it had slots. If it is revoked, its calls take nothing when they arrive later.
local function run(payload)
  local revoked, limit = unpack('>BI7', payload)
  local request = sub(payload, 9)
  open()
  local mine, held = '', 0
  if exists then
    if free(request) then held = 1 else call('ZREM', key, 'w' .. request) end
  end
  if revoked == 1 then add(reading + $REVOKED_FOR, 'x' .. request) end
  if whole or first() then
    local process = process_of(request)
    if first() then call('ZADD', key, 'XX', reading + silence_of(process), 'o' .. process) end
    mine = hand_on(limit, process)
  end
  close()
  return pack('>BI7', held, reading) .. mine
end
