-- A key's semaphore is one sorted set. A member's first byte is its kind, on which the score depends:
--
--   w  a waiting request: its ticket - $LINE, so that the line comes first
--   s  an extended permit: its token - $SINCE. The token is the time of its grant in µs, and a little more if one script grants several
--   u  the summary: minus (the time of the last call, in units of $TICK µs, * $COUNT + the number of slots in use)
--   p  a permit: when it ends
--   g  slots reserved for a waiting request: until when its process can claim them
--   o  a waiting process receiving messages, q a polling process: when it counts as dead
--   x  a revoked request: until when it may still arrive
--
-- The rest of w, s, p, g and x is the request: the process ($PROCESS bytes; the last 7 are the maximum time between its
-- calls), the attempt ($ATTEMPT bytes), the number of slots, Hold, and the process's text. The rest of o and q is the process.
--
-- While a script runs the summary is 0, and a script failing midway leaves it at 0. Then, and if the
-- clock has stepped back, the next script counts the slots and bounds the ends. The set is never empty
-- while a script runs: a cluster moving the slot refuses access to a key that has just vanished.
local grace = tonumber(argv[4] or 0)
local pack, unpack, sub, floor, call = struct.pack, struct.unpack, string.sub, math.floor, redis.call
local key, exists, used
local lives -- the lifetime of a set made by this script
local lasting = 0 -- how long this script's set is needed at most, in ms
local whole -- the functions of slots_total.lua; nil without Total

-- enter begins the work on a key.
local function enter(other)
  key, exists, used, lives = other, false, 0, nil
  if whole then whole.enter() end
end

-- fits reports whether n more slots are within the limits of the key and of all keys together.
local function fits(n, limit) return used + n <= limit and (not whole or whole.fits(n)) end

local function process_of(request) return sub(request, 1, $PROCESS) end
local function attempt_of(request) return sub(request, $PROCESS + 1, $PROCESS + $ATTEMPT) end
local function slots_of(request) return (unpack('>I7', sub(request, $PROCESS + $ATTEMPT + 1))) end
local function hold_of(request) return (unpack('>I7', sub(request, $PROCESS + $ATTEMPT + 8))) end
local function silence_of(process) return (unpack('>I7', sub(process, $PROCESS - 6))) end
local function claimable(process) return silence_of(process) - $PLACE_FOR + $CLAIM_FOR end

-- lasts returns how long a member of a kind may last.
local function lasts(kind, rest)
  if kind == 'p' then return hold_of(rest) end
  if kind == 'g' then return claimable(process_of(rest)) end
  if kind == 'x' then return $REVOKED_FOR end
  return silence_of(rest)
end

-- repair counts the slots in use. It shortens ends that are too far ahead, because the clock has stepped back since.
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

-- open reads how many slots are in use, and removes the ended members.
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
    -- A process that has not claimed its slots has stopped. If it goes on, it enters the line again.
    if kind == 'g' then call('ZREM', key, 'o' .. process_of(rest), 'q' .. process_of(rest)) end
  end
end

-- live sets the key's lifetime: as long as it is needed.
local function live(ends)
  local ms = math.ceil((ends - reading + grace) / 1000) + 1000
  lasting = math.max(lasting, ms)
  call('PEXPIRE', key, ms)
end

-- add adds a member with an end. For a new set PEXPIRE comes first: an ACL may forbid it, and without it the set would stay.
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

-- first returns the line's first member, nil if the line is empty.
local function first()
  local member = exists and call('ZRANGE', key, 0, 0)[1]
  return member and sub(member, 1, 1) == 'w' and member or nil
end

-- unused reports whether the set contains nothing worth keeping: only a few processes that have just stopped waiting.
local function unused()
  if used > 0 then return false end
  local members = call('ZRANGE', key, 0, 16)
  for _, member in ipairs(members) do
    local kind = sub(member, 1, 1)
    if kind == 'w' or kind == 'x' then return false end
  end
  return #members <= 16
end

-- close stores the summary, and how long the key is needed.
local function close()
  if exists and unused() then
    call('DEL', key)
    exists = false
  elseif exists then
    if not lives then live(tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])) end
    call('ZADD', key, -(floor(reading / $TICK) * $COUNT + used), 'u')
  end
  if whole then whole.leave() end
end

local last = 0 -- this script's last token

-- token_of returns a permit's token: its hold's beginning, unless that has been restarted since.
local function token_of(request, ends)
  local score = call('ZSCORE', key, 's' .. request)
  return score and score + $SINCE or ends - hold_of(request)
end

-- next_token returns the token of the next grant.
local function next_token() return math.max(reading, last + 1) end

-- grant makes a permit for slots already counted as used, and returns its token.
local function grant(request)
  last = next_token()
  add(last + hold_of(request), 'p' .. request)
  return last
end

-- renew restarts a permit's hold.
local function renew(request, ends)
  call('ZADD', key, 'NX', ends - hold_of(request) - $SINCE, 's' .. request)
  call('ZADD', key, reading + hold_of(request), 'p' .. request)
end

-- take grants free slots.
local function take(request)
  used = used + slots_of(request)
  if whole then whole.granted(slots_of(request)) end
  return grant(request)
end

-- free gives the slots of a request back, and reports whether it had any.
local function free(request)
  if call('ZREM', key, 'p' .. request, 'g' .. request) == 0 then return false end
  used = used - slots_of(request)
  call('ZREM', key, 's' .. request)
  return true
end

-- reach returns how a process gets slots: 'p' at once, 'g' by a claim after a message, 'q' by a claim when it polls,
-- false if it is dead. A process that has not called for a moment has to claim its slots, because it may have stopped.
local function reach(process, own)
  if process == own then return 'p' end
  local ends = call('ZSCORE', key, 'o' .. process)
  if ends then return ends - silence_of(process) >= reading - $FRESH and 'p' or 'g' end
  return call('ZSCORE', key, 'q' .. process) and 'q' or false
end

-- serve grants free slots to the line's first requests, up to a maximum number, while they
-- suffice for the next one. It returns the attempts and tokens of the calling process's requests
-- among them. Other processes receive messages. A process that does not receive its message is
-- dead or no longer listens: its requests leave the line. If it lives, it enters them again.
local function serve(limit, own, grants)
  local mine, reached = {}, {}
  local drops = 0
  while grants > 0 and drops < $DROPS do
    local member = first()
    if not member then break end
    local request = sub(member, 2)
    local process, n = process_of(request), slots_of(request)
    local kind = reached[process]
    if kind == nil then kind = reach(process, own) end
    if kind and not fits(n, limit) then break end
    local token = next_token()
    if kind and process == own then
      mine[#mine + 1] = attempt_of(request) .. pack('>I7', token)
    elseif kind == 'p' or kind == 'g' then
      local receivers = redis.pcall('SPUBLISH', key .. '!' .. process, kind .. pack('>I7', token) .. attempt_of(request))
      if type(receivers) ~= 'number' then -- an ACL forbids messages, or the slot is being moved
        kind = 'q'
      elseif receivers == 0 then
        kind = false
        call('ZREM', key, 'o' .. process)
      end
    end
    reached[process] = kind
    call('ZREM', key, member)
    if kind == 'p' then
      take(request)
    elseif kind then
      add(reading + claimable(process), 'g' .. request)
      used = used + n
      if whole then whole.granted(n) end
    end
    if kind then grants = grants - 1 else drops = drops + 1 end
  end
  return table.concat(mine)
end

-- hand_on serves the key's line, or with Total all keys' lines in turn.
local function hand_on(limit, own)
  if whole then return whole.hand_on(limit, own) end
  return serve(limit, own, $GRANTS)
end

-- present records that a process waits, and whether it receives messages.
local function present(process, listens)
  add(reading + silence_of(process), (listens and 'o' or 'q') .. process)
  call('ZREM', key, (listens and 'q' or 'o') .. process)
end

-- claim makes a permit for reserved slots, or restarts a permit's hold. It returns the token, or nil if there is neither.
local function claim(request)
  local scores = call('ZMSCORE', key, 'p' .. request, 'g' .. request)
  if scores[2] then
    call('ZREM', key, 'g' .. request)
    if scores[1] then used = used - slots_of(request) end
  end
  if scores[1] then
    local token = token_of(request, scores[1])
    renew(request, scores[1])
    return token
  end
  return scores[2] and grant(request)
end
