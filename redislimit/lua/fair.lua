-- One call of a process for its tenants: it reports, and requests units for them. Four keys of one slot hold
-- the state: the figures, the tenants, their ends, and the processes. Amounts are whole, and below 2^53.
--
-- level counts the units offered to a tenant of weight 1 since the beginning, in 1/$FRACTION of a unit. A tenant's
-- record has used: the units taken by the tenant, per weight, in the same fractions. A tenant is in line while
-- processes request units for it. An eighth of the burst is a reserve for new tenants. So before and after each step
--
--   the sum over the line of weight * (level - used), + rest  =  (burst - spent - an eighth of burst) * $FRACTION
--
-- Each unit regained by the rate, or given back by a process, raises the level for all in line alike.
--
-- spent counts the units granted and not regained. Some of them are out: processes hold them, and have not used them.
-- While units are out the rate does not replace them, so burst + rate * t bounds the use, even if it comes late.
local spread = unpack
local unpack, pack, sub, floor, min, max, call = struct.unpack, struct.pack, string.sub, math.floor, math.min, math.max, redis.call
local figures, tenants, ends, processes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local units, per, burst, alive, life, held, count = unpack('>I7I7I7I7I7I7I7', payload)
local process = sub(payload, 50, 49 + $FAIR_PROCESS)
local function whole(n) return string.format('%.0f', n) end

local s = call('HMGET', figures, 'at', 'spent', 'part', 'level', 'rest', 'weights', 'free', 'calls', 'least')
local at, spent, part, level, rest = tonumber(s[1]) or reading, tonumber(s[2]) or 0, tonumber(s[3]) or 0, tonumber(s[4]) or 0, tonumber(s[5]) or 0
local weights, free, calls = tonumber(s[6]) or 0, tonumber(s[7]) or 0, (tonumber(s[8]) or 0) + 1
local now = max(reading, at)
local reserve = floor(burst / 8)
local refill = max(1000000, floor(burst * per / units)) -- how long the whole burst takes to be regained

local function raise(amount) -- raise raises the level for all in line
  amount = amount + rest
  if weights > 0 then
    local each = floor(amount / weights)
    level, rest = level + each, amount - each * weights
  else
    rest = 0
  end
end

-- out counts the units held by processes. A process silent for too long is
-- dead, or does not use its units any more. Then its units count as used.
local out, alone, was = 0, 1, 0
local all = call('HGETALL', processes)
for i = 1, #all, 2 do
  local till, holds = string.match(all[i + 1], '^(%S+) (%S+)$')
  out = out + holds
  if all[i] == process then
    was = tonumber(holds)
  elseif tonumber(till) <= now then
    call('HDEL', processes, all[i])
    was = was + holds
  else
    alone = alone + 1
  end
end

-- The rate replaces units only after they are used.
local owed = min(now - at, refill + per) * units + part
local come = floor(owed / per)
part = owed - come * per
spent = min(spent, burst)
if spent - come <= out then
  come, part = max(0, spent - out), 0
end
spent = spent - come

-- The least debts, in order: each is a call, and the least number of units used and not regained since this call.
-- They bound a refund: the key never gets more than if the reservation had been as small from the beginning.
local leasts = {}
for i = 1, #(s[9] or ''), 14 do
  local call_, least = unpack('>I7I7', s[9], i)
  leasts[#leasts + 1] = { call_, least }
end
local debt = max(0, spent - out - (part > 0 and 1 or 0))
while #leasts > 0 and leasts[#leasts][2] >= debt do leasts[#leasts] = nil end
leasts[#leasts + 1] = { calls, debt }
if #leasts > $FAIR_LEASTS then
  local merge = 1
  for i = 2, #leasts - 1 do
    if leasts[i + 1][2] - leasts[i][2] < leasts[merge + 1][2] - leasts[merge][2] then merge = i end
  end
  leasts[merge + 1][2] = leasts[merge][2]
  table.remove(leasts, merge)
end
out = out - was + held

local function least_after(n)
  for i = 1, #leasts do
    if leasts[i][1] > n then return leasts[i][2] end
  end
  return spent - out
end

-- refund gives back a part of a reservation's cost, and returns how much. The reservation was used between two calls of
-- its process, from and to. If to is 0, it is this call. The debts before the second call do not contain the cost yet.
local function refund(from, to, cost, amount)
  if to == 0 then to = calls end
  local most = max(0, min(least_after(from) + cost, least_after(to), spent - out))
  amount = min(amount, most)
  if amount > 0 then
    for i = #leasts, 1, -1 do
      local e, later = leasts[i], leasts[i + 1]
      if e[1] > to then e[2] = max(0, e[2] - amount) end
      if later then e[2] = min(e[2], later[2]) end
    end
    spent = spent - amount
  end
  return amount
end

raise((burst - spent - reserve - free) * $FRACTION)

-- Tenants leave the line when no process has requested units for them.
-- The others take over their savings, and advance the units they owe.
local gone = call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, $FAIR_LEAVES)
if #gone > 0 then
  local records = call('HMGET', tenants, spread(gone))
  for i, name in ipairs(gone) do
    local used, weight, line = string.match(records[i] or '', '^(%S+) (%S+) (%S+)$')
    if line == '1' then
      used, weight = tonumber(used), tonumber(weight)
      weights = weights - weight
      raise(weight * (level - used))
      local ahead = max(0, used - level) / $FRACTION * (weights + weight) * per / units -- a debt is not forgotten
      call('HSET', tenants, name, whole(used) .. ' ' .. whole(weight) .. ' 0')
      call('ZADD', ends, whole(now + max(refill, min(ahead, $FAIR_LONGEST))), name)
    else
      call('HDEL', tenants, name)
      call('ZREM', ends, name)
    end
  end
end

-- savings returns a tenant's maximum savings: the tenant may come again
-- after a while, or wait for a large cost. Further units go to the others.
local function savings(weight, of, least) return floor(max(floor(burst / 4) * $FRACTION / of, least * $FRACTION / weight)) end

local names, reports, place, stays = {}, {}, 50 + $FAIR_PROCESS, held > 0
for i = 1, count do
  local weight, wanted, least, back, over, refunds, length = unpack('>I7I7I7I7I7I7I7', payload, place)
  stays = stays or wanted > 0
  local a = { weight = weight, wanted = wanted, least = least, back = back, over = over, at = place + 49, refunds = refunds }
  place = place + 49 + 28 * refunds
  names[i], reports[i] = sub(payload, place, place + length - 1), a
  place = place + length
end
local reply = {}
if count > 0 then
  local records, set, score, latest = call('HMGET', tenants, spread(names)), {}, {}, whole(now + alive)
  for i = 1, count do
    local a = reports[i]
    local weight, used, before, line = a.weight, nil, nil, '0'
    if records[i] then
      used, before, line = string.match(records[i], '^(%S+) (%S+) (%S+)$')
      used, before = tonumber(used), tonumber(before)
    end
    if line == '1' and before ~= weight then -- a tenant with another weight joins again, with the same savings or debt
      weights = weights - before
      local saved = before * (level - used)
      raise(saved)
      used, line = level - floor(saved / weight), '0'
    end
    if line ~= '1' then
      local first = level - savings(weight, weights + weight, a.least)
      used = used and max(used, first) or first
      if weights == 0 then
        weights, rest, level = weight, 0, used
        raise((burst - spent - reserve) * $FRACTION)
      else
        weights = weights + weight
        raise(-weight * (level - used))
      end
    end
    local back = min(a.back, spent)
    spent = spent - back
    for k = 1, a.refunds do
      back = back + refund(unpack('>I7I7I7I7', payload, a.at + 28 * (k - 1)))
    end
    if back > 0 then
      local less = floor(back * $FRACTION / weight)
      used, rest = used - less, rest + back * $FRACTION - less * weight
    end
    if a.over > 0 then -- the total is charged with as much as is left, and the tenant owes all
      local taken, more = min(a.over, burst - spent), floor(a.over * $FRACTION / weight)
      more = max(0, min(more, level + floor($FAIR_HIGHEST / weight) - used))
      spent, used = spent + taken, used + more
      raise(more * weight - taken * $FRACTION)
    end
    -- The share grows between two calls, and reaches the cost at the line's head in between: the rest is for the next cost.
    local most = savings(weight, weights, a.least) + floor(min(alive / per * units, burst) * $FRACTION / weights)
    if level - used > most then
      local more = weight * (level - used - most)
      used = level - most
      raise(more)
    end
    local grant = max(0, min(a.wanted, floor(weight * (level - used) / $FRACTION), burst - spent))
    if grant < a.least then grant = 0 end
    if grant > 0 then
      local more = floor(grant * $FRACTION / weight)
      used, spent, out = used + more, spent + grant, out + grant
      held, rest = held + grant, rest - (grant * $FRACTION - more * weight)
    end
    local credit = floor(weight * (level - used) / $FRACTION)
    reply[i] = pack('>I7I7', grant, max(0, credit + $FAIR_ZERO))
    set[2 * i - 1], set[2 * i] = names[i], whole(used) .. ' ' .. whole(weight) .. ' 1'
    score[2 * i - 1], score[2 * i] = latest, names[i]
  end
  call('HSET', tenants, spread(set))
  call('ZADD', ends, spread(score))
end

-- Before the level becomes too large to be exact, it restarts at 0, and each tenant's used is counted from it.
if level > $FAIR_HIGHEST then
  local records = call('HGETALL', tenants)
  for i = 1, #records, 2 do
    local used, weight, line = string.match(records[i + 1], '^(%S+) (%S+) (%S+)$')
    call('HSET', tenants, records[i], whole(used - level) .. ' ' .. weight .. ' ' .. line)
  end
  level = 0
end

local packed = {}
for i = 1, #leasts do packed[i] = pack('>I7I7', leasts[i][1], leasts[i][2]) end
if stays or held > 0 then
  call('HSET', processes, process, whole(now + life) .. ' ' .. whole(held))
else
  call('HDEL', processes, process)
end
call('HSET', figures, 'at', whole(now), 'spent', whole(spent), 'part', whole(part), 'level', whole(level), 'rest', whole(rest), 'weights', whole(weights),
  'free', whole(burst - spent - reserve), 'calls', whole(calls), 'least', table.concat(packed))
local lasts = floor(refill / 1000) + floor(life / 1000) + 10000
for i = 1, 4 do call('PEXPIRE', KEYS[i], lasts) end
return pack('>I7I7I7I7', calls, alone, spent, weights) .. table.concat(reply)
