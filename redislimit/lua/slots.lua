-- The semaphore of a key is one sorted set. The first byte of a member is its kind, on which the score depends:
--
--   w  a waiting request: its ticket - $LINE, so that the line comes first
--   s  an extended permit: the time of its grant - $SINCE
--   u  the summary: minus (the time of the last call, in units of $TICK µs, * $COUNT + the number of slots in use)
--   p  a permit: the time at which it ends
--   g  slots reserved for a waiting request: the time until which its process can claim them
--   o  a waiting process that receives messages, q a process that polls: the time at which it counts as dead
--   x  a revoked request: the time until which it may still arrive
--
-- The rest of w, s, p, g and x is the request: the process ($PROCESS bytes, the last 7 of which are the time for which it may
-- be silent), the attempt ($ATTEMPT bytes), the number of slots, and Hold. The rest of o and q is the process.
--
-- While a script runs the summary is 0. So a script that fails midway leaves 0; then, and if the clock has stepped back, the
-- next script counts the slots and bounds the ends. And the set is never empty while a script runs: a cluster that moves the
-- slot refuses access to a key that has just vanished.
local key = KEYS[1]
local grace = tonumber(argv[4] or 0)
local pack, unpack, sub, floor, call = struct.pack, struct.unpack, string.sub, math.floor, redis.call
local exists, used = false, 0
local lives -- of a set that this script has made, the time for which it lives

local function process_of(request) return sub(request, 1, $PROCESS) end
local function attempt_of(request) return sub(request, $PROCESS + 1, $PROCESS + $ATTEMPT) end
local function slots_of(request) return (unpack('>I7', sub(request, $PROCESS + $ATTEMPT + 1))) end
local function hold_of(request) return (unpack('>I7', sub(request, $PROCESS + $ATTEMPT + 8))) end
local function silence_of(process) return (unpack('>I7', sub(process, $PROCESS - 6))) end
local function claimable(process) return silence_of(process) - $PLACE_FOR + $CLAIM_FOR end

-- The longest time for which a member of a kind may last.
local function lasts(kind, rest)
  if kind == 'p' then return hold_of(rest) end
  if kind == 'g' then return claimable(process_of(rest)) end
  if kind == 'x' then return $REVOKED_FOR end
  return silence_of(rest)
end

-- repair counts the slots in use. It moves ends that are too far ahead, which a clock has set that stepped back since.
local function repair()
  used = 0
  local members = call('ZRANGEBYSCORE', key, '(0', '+inf', 'WITHSCORES')
  for i = 1, #members, 2 do
    local kind, rest = sub(members[i], 1, 1), sub(members[i], 2)
    local latest = reading + lasts(kind, rest)
    if tonumber(members[i + 1]) > latest then call('ZADD', key, latest, members[i]) end
    if kind == 'p' or kind == 'g' then used = used + slots_of(rest) end
  end
end

-- open reads the number of slots in use, and removes the members that have ended.
local function open()
  local summary = tonumber(call('ZSCORE', key, 'u') or nil)
  if not summary then return end
  exists = true
  call('ZADD', key, 0, 'u')
  used = -summary % $COUNT
  if summary == 0 or floor(-summary / $COUNT) > floor(reading / $TICK) then repair() end
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '(0', reading)) do
    local kind, rest = sub(member, 1, 1), sub(member, 2)
    call('ZREM', key, member)
    if kind == 'p' or kind == 'g' then
      used = used - slots_of(rest)
      call('ZREM', key, 's' .. rest)
    end
    -- A process that has not claimed its slots has stopped. If it goes on, it comes into the line again.
    if kind == 'g' then call('ZREM', key, 'o' .. process_of(rest), 'q' .. process_of(rest)) end
  end
end

-- live lets the key live while it is of use.
local function live(ends) call('PEXPIRE', key, math.ceil((ends - reading + grace) / 1000) + 1000) end

-- add adds a member that ends. Of a new set, the command that an ACL may forbid comes first: without PEXPIRE the set would stay.
local function add(ends, member)
  if exists then
    call('ZADD', key, ends, member)
    if lives and ends > lives then lives = nil end
  else
    live(ends)
    call('ZADD', key, 0, 'u', ends, member)
    live(ends)
    exists, lives = true, ends
  end
end

-- first returns the first member of the line, nil if the line is empty.
local function first()
  local member = exists and call('ZRANGE', key, 0, 0)[1]
  return member and sub(member, 1, 1) == 'w' and member or nil
end

-- unused reports whether the set has nothing to keep: only processes that have just stopped waiting, and few of them.
local function unused()
  if used > 0 then return false end
  local members = call('ZRANGE', key, 0, 16)
  for _, member in ipairs(members) do
    local kind = sub(member, 1, 1)
    if kind == 'w' or kind == 'x' then return false end
  end
  return #members <= 16
end

-- close stores the summary, and how long the key is of use.
local function close()
  if not exists then return end
  if unused() then
    call('DEL', key)
    return
  end
  if not lives then live(tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])) end
  call('ZADD', key, -(floor(reading / $TICK) * $COUNT + used), 'u')
end

-- reach returns how a process gets slots: 'p' at once, 'g' by a claim after a message, 'q' by a claim when it polls, false
-- if it is dead. A process that has been silent for a moment has to claim, since it may have stopped.
local function reach(process, own)
  if process == own then return 'p' end
  local ends = call('ZSCORE', key, 'o' .. process)
  if ends then return ends - silence_of(process) >= reading - $FRESH and 'p' or 'g' end
  return call('ZSCORE', key, 'q' .. process) and 'q' or false
end

-- serve grants free slots in the order of the line, while they suffice for the first request. It returns the attempts of
-- the calling process that were granted slots. Other processes receive messages. A process that does not receive its message
-- is dead or no longer listens: its requests leave the line. If it lives, it enters them again.
local function serve(limit, own)
  local mine, reached = {}, {}
  local grants, drops = 0, 0
  while grants < $GRANTS and drops < $DROPS do
    local member = first()
    if not member then break end
    local request = sub(member, 2)
    local process, n = process_of(request), slots_of(request)
    local kind = reached[process]
    if kind == nil then kind = reach(process, own) end
    if kind and used + n > limit then break end
    if kind and process == own then
      mine[#mine + 1] = attempt_of(request)
    elseif kind == 'p' or kind == 'g' then
      local receivers = redis.pcall('SPUBLISH', key .. '!' .. process, kind .. pack('>I7', reading) .. attempt_of(request))
      if type(receivers) ~= 'number' then -- an ACL forbids messages, or the slot is being moved
        kind = 'q'
      elseif receivers == 0 then
        kind = false
        call('ZREM', key, 'o' .. process)
      end
    end
    reached[process] = kind
    call('ZREM', key, member)
    if kind then
      if kind == 'p' then
        add(reading + hold_of(request), 'p' .. request)
      else
        add(reading + claimable(process), 'g' .. request)
      end
      used = used + n
      grants = grants + 1
    else
      drops = drops + 1
    end
  end
  return table.concat(mine)
end

-- present records that a process waits, and whether it receives messages.
local function present(process, listens)
  add(reading + silence_of(process), (listens and 'o' or 'q') .. process)
  call('ZREM', key, (listens and 'q' or 'o') .. process)
end

-- claim makes a permit of reserved slots, or begins the hold of a permit anew. It reports whether there was either.
local function claim(request)
  local scores = call('ZMSCORE', key, 'p' .. request, 'g' .. request)
  if not scores[1] and not scores[2] then return false end
  call('ZADD', key, reading + hold_of(request), 'p' .. request)
  if scores[2] then call('ZREM', key, 'g' .. request) end
  return true
end
