-- Gives back silent processes' places in a queue, and moves up the places behind them. A place can move while
-- it has a record: its process claims it by a number. So only places at the queue's end move, with nothing else
-- between them or behind them. No place moves to an instant if its process might learn of it too late. The call
-- has the silent processes. The reply is 1 byte, 1 if anything has been given back, and all the key's records.
local records = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '+inf', 'LIMIT', 0, 1000)

local function closeUp()
  local s, code = load(1)
  if not s or code or s.kind ~= LEAKY or s.base then return false end
  local silent = {}
  for i = 3, #payload, 8 do silent[string.sub(payload, i, i + 7)] = true end
  local f = figures(LEAKY, s.units, s.per)
  local behind, from = token.regained(f, s), nil
  for i = #records, 1, -1 do
    local at, cost, gen, changes, kind = unpack('>I7I7I3BB', records[i], 13)
    local gap = behind - at - (price(f, cost))
    if kind ~= LEAKY or gen ~= s.gen or changes ~= s.changes or gap < 0 or gap > 1 then break end -- both instants are rounded up
    behind = at
    if silent[string.sub(records[i], 1, 8)] then from = i end
  end
  if not from then return false end
  local now = max(reading, s.last)
  local u, p = max(now, (unpack('>I7', records[from], 13))), 0
  for i = from, #records do
    local record = records[i]
    local at, cost = unpack('>I7I7', record, 13)
    redis.call('ZREM', KEYS[2], record)
    if silent[string.sub(record, 1, 8)] then
      records[i] = ''
    else
      local to, soonest = p > 0 and u + 1 or u, reading + $TENTATIVE_LEAD
      if to < soonest then u, p, to = soonest, 0, soonest end
      if to >= at then u, p, to = at, 0, at end
      at = to
      records[i] = string.sub(record, 1, 12) .. pack('>I7', at) .. string.sub(record, 20)
      redis.call('ZADD', KEYS[2], at, records[i])
      local pu, pp = price(f, cost)
      u, p = u + pu, p + pp
      if p >= f.units then u, p = u + 1, p - f.units end
    end
  end
  if u < s.at or u == s.at and p < s.n then
    s.at, s.n, s.last = u, p, now
    save(KEYS[1], s, reading, grace)
  end
  return true
end

local any = closeUp()
return (any and '\1' or '\0') .. table.concat(records)
