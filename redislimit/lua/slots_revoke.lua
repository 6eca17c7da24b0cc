-- An attempt's permit ends, and its slots are granted to the next requests.
local function run(payload)
  local limit, ended = unpack('>I7', payload), 0
  local attempt = sub(payload, 8)
  open()
  for _, member in ipairs(exists and call('ZRANGEBYSCORE', key, '(0', '+inf') or {}) do
    local kind, rest = sub(member, 1, 1), sub(member, 2)
    if (kind == 'p' or kind == 'g') and attempt_of(rest) == attempt and free(rest) then ended = 1 end
  end
  local mine = hand_on(limit, '')
  close()
  return pack('>BI7', ended, reading) .. mine
end
