-- A decision on one key, in the usual case, before anything else is even defined. If something is
-- unusual, break leaves the block with nothing written, and the general case follows. The answer is
-- the verdict, the time, and the stored state: to pack a state anew would take longer than to decide.
local unpack, key, pos = struct.unpack, KEYS[1], $HEAD_SIZE + 1
repeat
  --JUDGE
  --DENIED
  --SPEND
  --STORE
  return '+' .. sec .. '.' .. usec .. body
until true
