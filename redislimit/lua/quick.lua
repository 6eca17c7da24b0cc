-- The usual case, before anything else is even defined: every key is new or in a plain
-- state under the figures of the call, and nothing has to be booked ahead. Whatever is
-- unusual leaves this block, which has written nothing by then, for the general one.
local unpack, pack, call, fmod = struct.unpack, struct.pack, redis.call, math.fmod
local op, reading, salt, grace, count = unpack('>BI7I3I7B', ARGV[1])
if reading == 0 then
  local t = call('TIME')
  reading = t[1] * 1000000 + t[2]
end

local usual, allowed, pos, reply = true, true, 20, {}
local keys, values, lives, writes = {}, {}, {}, 0
for i = 1, count do
  local key, kind, shadow, cost, units, per, cap, pu, pp, fu, fp, ahead
  key, kind, shadow, cost, units, per, cap, pu, pp, fu, fp, ahead, pos = unpack('>BBBI7I7I7I7I7I7I7I7I7', ARGV[1], pos)
  local raw = redis.pcall('GET', KEYS[key])
  local gen, changes, now, at, n, m, newest, expiry = salt, 0, reading, reading, 0, 0, 0, 0
  local new = not raw
  if shadow ~= 0 then usual = false break end
  if raw then
    local size = type(raw) == 'string' and #raw
    if size ~= 44 and size ~= 51 and (kind ~= 0xFB or not size or size < 51) then usual = false break end
    local tag, last, u, p
    tag, gen, changes, last, u, p, expiry, at, n = unpack('>BI3BI7I7I7I4I7I7', raw)
    if tag ~= kind or u ~= units or p ~= per or last > 5851439254740992 or at > 9007199254740992 then
      usual = false
      break
    end
    if last > now then now = last end
  end
  local ok, needed, verdict
  local was, had = at, n -- what the answer tells is the state before the cost is spent
  if kind <= 0xF9 then
    if raw and #raw ~= 44 or n >= units then usual = false break end
    local u, p = at, n
    if u < now then u, p = now, 0 end
    local leaves = u
    if p > 0 then leaves = u + 1 end
    u, p = u + pu, p + pp
    if p >= units then u, p = u + 1, p - units end
    ok = u - now < fu or u - now == fu and p <= fp
    if kind == 0xF9 and ahead < 4503599627370496 and leaves > now and leaves - ahead > reading then
      ok = false
    elseif not ok and ahead > 0 and kind == 0xF8 then
      usual = false
      break
    end
    at, n, needed = u, p, p > 0 and u + 1 or u
  elseif kind == 0xFA then
    if raw and #raw ~= 44 or at > now or n > units then usual = false break end
    if now - at >= per then at, n = now, 0 end
    was, had = at, n
    n = n + cost
    ok = n <= units
    if not ok and ahead > 0 then usual = false break end
    if had == 0 then at = now end
    needed = at + per
  elseif kind == 0xFC then
    if raw then
      if #raw ~= 51 then usual = false break end
      m = unpack('>I7', raw, 45)
    end
    if at > now or n > units or m > units then usual = false break end
    if now - at >= per then
      if now - at >= 2 * per then at, n, m = now, 0, 0 else at, n, m = at + per, 0, n end
      if m == 0 then at = now end
    end
    was, had = at, n
    local weight = 0
    if m > 0 then
      local product = m * (at + per - now)
      if product >= 9007199254740992 then usual = false break end
      local rest = fmod(product, per)
      weight = (product - rest) / per
      if rest > 0 then weight = weight + 1 end
    end
    n = n + cost
    ok = n + weight <= units
    if not ok and ahead > 0 then usual = false break end
    if had == 0 and m == 0 then at = now end
    needed = at + 2 * per
  else
    if n > 0 then usual = false break end -- a debt
    local size, base, sum, gone = 0, 0, 0, 0
    if raw then
      size = (#raw - 51) / 21
      if size ~= math.floor(size) then usual = false break end
      base = unpack('>I7', raw, 45)
      sum = base
      if size > 0 then
        local last
        newest, sum, last = unpack('>I7I7I7', raw, 31 + 21 * size)
        if last > now then now = last end
      end
    end
    local begin = newest > now and newest or now
    local before = base
    if size > 0 and unpack('>I7', raw, 52) <= begin - per then -- the last one that is past
      local low, high = 1, size
      while low < high do
        local mid = math.ceil((low + high) / 2)
        if unpack('>I7', raw, 31 + 21 * mid) <= begin - per then low = mid else high = mid - 1 end
      end
      gone, before = low, unpack('>I7', raw, 38 + 21 * low)
    end
    local live = sum - before
    if live < 0 or base > sum or sum > 9007199254740992 or newest > 9007199254740992 or now > 5851439254740992 then usual = false break end
    at = begin
    if live > units - cost then -- the first one whose passing leaves enough room
      local low, high = gone + 1, size
      while low < high do
        local mid = math.floor((low + high) / 2)
        if sum - unpack('>I7', raw, 38 + 21 * mid) <= units - cost then high = mid else low = mid + 1 end
      end
      at = unpack('>I7', raw, 31 + 21 * low) + per
    end
    ok = at <= now
    if not ok and ahead > 0 then usual = false break end
    was, had, m = at, live, newest
    if ok and allowed and cost > 0 and op ~= 2 then
      local record = pack('>I7I7I7', at, sum + cost, now)
      needed = at + per
      if raw and expiry * 1000000 >= needed and (gone < 16 or gone < size / 2) and newest ~= at then
        values[i] = record
        lives[i] = -1
      else
        local kept = ''
        if raw then
          if newest == at then size = size - 1 end
          kept = string.sub(raw, 52 + 21 * gone, 51 + 21 * size)
        end
        local renew = expiry * 1000000 < needed
        local ttl = 2 * (needed - reading) + grace
        if renew then expiry = math.min(math.floor((reading + ttl) / 1000000), 4294967295) end
        values[i] = pack('>BI3BI7I7I7I4I7I7I7', kind, gen, changes, now, units, per, expiry, 0, 0, before) .. kept .. record
        lives[i] = renew and math.ceil(ttl / 1000) or 0
      end
    end
  end
  if cost == 0 then ok = true end
  allowed = allowed and ok
  if kind ~= 0xFB and ok and allowed and cost > 0 and op ~= 2 then
    local life = 0
    if new or expiry * 1000000 < needed then
      local ttl = 2 * (needed - reading) + grace
      life = math.ceil(ttl / 1000)
      expiry = math.min(math.floor((reading + ttl) / 1000000), 4294967295)
    end
    local value = pack('>BI3BI7I7I7I4I7I7', kind, gen, changes, now, units, per, expiry, at, n)
    if kind == 0xFC then value = value .. pack('>I7', m) end
    values[i], lives[i] = value, life
  end
  keys[i] = key
  reply[i + 1] = pack('>BI3BI7I7I7I7I7', ok and 1 or 0, gen, changes, now, was, had, m, 0)
end
if usual then
  if allowed then
    for i = 1, count do
      local value = values[i]
      if value then
        local life = lives[i]
        if life > 0 then
          call('SET', KEYS[keys[i]], value, 'PX', life)
        elseif life == 0 then
          call('SET', KEYS[keys[i]], value, 'KEEPTTL')
        else
          call('APPEND', KEYS[keys[i]], value)
        end
      end
    end
  end
  reply[1] = pack('>BI7', allowed and 1 or 0, reading)
  return table.concat(reply)
end
