-- A settlement or an adjustment, followed by data for each key, in bytes: 1 byte, which is 1 if the spending
-- is known and 2 if the key has no state; its limit's kind 1 and figures 14; the sum of its open estimates
-- before and after 14; the spending before and after 14; and the instant when the spending is regained 7.
local estimates = op == $SETTLE_OPEN
if estimates then op = 0 end

-- spentOf returns a key's spending, or nil if the call lacks the necessary data.
local function spentOf(s)
  local now = max(reading, s.last)
  local ran, n = pcall(function()
    lapse(s, now)
    popDue(s, now)
    return algorithms[s.kind].spent(figures(s.kind, s.units, s.per), s, now)
  end)
  return ran and n or nil
end

local before, sums = {}, {}
if not readDates($HEAD_SIZE + 1 + (op == $ADJUST and $ADJUST_SIZE or $SETTLE_SIZE) * count) then
  for k = 1, #KEYS do
    local s = load(k)
    before[k] = s and spentOf(s) or 0
    sums[k] = sumOf(SUMS[k], s)
  end
end
