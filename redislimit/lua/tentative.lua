-- A decision for a waiting caller: a booking further ahead than the horizon is tentative.
-- Its record is kept in a sorted set beside the state, by the booking's instant:
--
--   process 8, number 4, at 7, cost 7, gen 3, changes 1, kind 1
--
-- The decision's reply is followed by 1 byte and the record without its first 12 bytes. The byte is
-- 1 if the record is the key's only one, and otherwise 2. Without a record, all these bytes are 0.
local NONE = string.rep('\0', $TENTATIVE_SIZE - 11)
local record
local spendFirm = spend
spend = function(q, s)
  if q.at > reading + $TENTATIVE_FROM then
    record = pack('>I7I7I3BB', q.at, q.cost, s.gen, s.changes, q.kind)
  end
  return spendFirm(q, s)
end

local reply = decide(1, count)
if string.byte(reply) > 1 then return reply end
if not record or string.byte(reply) == 0 then return reply .. NONE end
local at, from = unpack('>I7', record), op == BETWEEN and #payload - 18 or #payload - 11
redis.pcall('ZREMRANGEBYSCORE', KEYS[2], '-inf', reading - $TENTATIVE_STAYS * 1000)
local added = redis.pcall('ZADD', KEYS[2], at, string.sub(payload, from, from + 11) .. record)
if type(added) ~= 'number' then return reply .. NONE end
local life = math.ceil((at - reading + grace) / 1000) + $TENTATIVE_STAYS
if redis.pcall('PEXPIRE', KEYS[2], life, 'NX') == 0 then redis.pcall('PEXPIRE', KEYS[2], life, 'GT') end
return reply .. (redis.pcall('ZCARD', KEYS[2]) == 1 and '\1' or '\2') .. record
