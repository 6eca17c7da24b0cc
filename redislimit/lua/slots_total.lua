-- With Total the keys share a hash and a sorted set. The hash has a field for each key with slots or a line: its
-- slots in use, its limit, its level, its use, and its number among the keys waiting for Total, 0 if it does not
-- wait. The field '' has all keys' slots in use, the use at which keys begin, and the last number. While a
-- script runs this field is 'x': after a script has failed midway, the next script counts all keys again.
--
-- The set has the keys waiting for Total, except keys at their own limits, in the order of their turns:
-- by level, then by use, then by arrival. A key's use grows with each slot granted to it. A key that
-- comes back begins with the use of the last served key, plus one slot. So each key has its turn, even
-- if another one has many callers, and a stream of new keys delays no other. The kinds of members:
--
--   r  a waiting key, behind its number: its place - $LINE
--   e  a key with slots or a line: when the first member of its set ends
local sums, turns = KEYS[2], KEYS[3]
local total, level = unpack('>I7I7', payload)
payload = sub(payload, 15)
local sum, base, number = 0, 0, 0
local mine = {} -- of the present key: was, limit, level, use, number, and that number's place
whole = {}

local function read(name)
  local state = call('HGET', sums, name)
  if not state then return nil end
  local was, limit, own, use, n = unpack('>I7I7I7I7I7', state)
  return { was = was, limit = limit, level = own, use = use, number = n }
end

local function waits() return pack('>I7', mine.number) .. key end

function whole.enter() mine = read(key) or { was = 0, limit = 0, level = level, use = 0, number = 0 } end

function whole.fits(n) return sum + used - mine.was + n <= total end

-- place returns the key's place among the waiting keys, if it begins to wait now.
local function place() return mine.level * 2 ^ 40 + math.min(math.max(mine.use, base), 2 ^ 40 - 1) end

function whole.granted(n)
  local turn = math.max(mine.use, base)
  base, mine.use = turn + 1, turn + n
end

-- before reports whether another waiting key has its turn before this one.
function whole.before()
  local next = call('ZRANGE', turns, 0, 0, 'WITHSCORES')
  return next[2] and tonumber(next[2]) < 0 and next[2] + $LINE <= place()
end

-- leave records the key's state when the work on it ends.
function whole.leave()
  sum = sum + used - mine.was
  mine.was = used
  local line = first()
  if line and used + slots_of(sub(line, 2)) <= mine.limit then
    if mine.number == 0 then
      number = number + 1
      mine.number = number
      call('ZADD', turns, place() - $LINE, 'r' .. waits())
    end
  elseif mine.number > 0 then
    call('ZREM', turns, 'r' .. waits())
    mine.number = 0
  end
  if not exists then
    call('HDEL', sums, key)
    call('ZREM', turns, 'e' .. key)
    return
  end
  call('HSET', sums, key, pack('>I7I7I7I7I7', used, mine.limit, mine.level, mine.use, mine.number))
  local ends = call('ZRANGEBYSCORE', key, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if ends then call('ZADD', turns, ends, 'e' .. key) end
end

-- begin reads all keys' state, and opens the keys in which something has ended.
function whole.begin()
  local state = call('HGET', sums, '')
  call('HSET', sums, '', 'x')
  local ended = {}
  if state and #state == 21 then
    sum, base, number = unpack('>I7I7I7', state)
    for _, member in ipairs(call('ZRANGEBYSCORE', turns, '(0', reading, 'LIMIT', 0, $GRANTS)) do ended[#ended + 1] = sub(member, 2) end
  else
    ended = call('HKEYS', sums)
    call('DEL', turns)
    for _, name in ipairs(ended) do
      local one = name ~= '' and read(name)
      if one then
        sum, base = sum + one.was, math.max(base, one.use)
        call('HSET', sums, name, pack('>I7I7I7I7I7', one.was, one.limit, one.level, one.use, 0))
      end
    end
  end
  for _, name in ipairs(ended) do
    if name ~= '' then
      enter(name)
      open()
      close()
    end
  end
end

-- hand_on serves the keys in turn. If the first key does not fit, the others wait until it does.
function whole.hand_on(limit, own)
  local back, granted = key, {}
  if mine.level ~= level and mine.number > 0 then
    call('ZREM', turns, 'r' .. waits())
    mine.number = 0
  end
  mine.limit, mine.level = limit, level
  close()
  for _ = 1, $GRANTS do
    local member = call('ZRANGE', turns, 0, 0)[1]
    if not member or sub(member, 1, 1) ~= 'r' then break end
    enter(sub(member, 9))
    open()
    local line = first()
    if unpack('>I7', sub(member, 2)) ~= mine.number then -- a lost hash has left this member
      call('ZREM', turns, member)
    elseif line and used + slots_of(sub(line, 2)) <= mine.limit then
      if not whole.fits(slots_of(sub(line, 2))) and reach(process_of(sub(line, 2)), own) then
        close()
        break
      end
      call('ZREM', turns, member)
      mine.number = 0
      granted[#granted + 1] = serve(mine.limit, own, 1)
    end
    close()
  end
  enter(back)
  open()
  return table.concat(granted)
end

-- finish stores all keys' state.
function whole.finish()
  if call('HLEN', sums) == 1 then
    call('DEL', sums, turns)
    return
  end
  call('HSET', sums, '', pack('>I7I7I7', sum, base, number))
  for _, name in ipairs({ sums, turns }) do
    if call('PTTL', name) < lasting then call('PEXPIRE', name, lasting) end
  end
end
