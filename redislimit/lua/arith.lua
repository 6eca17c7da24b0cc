-- Whole numbers are doubles. Every figure is below 2^53, and so exact.
local fmod, max, min = math.fmod, math.max, math.min
local TOP = $TOP -- 2^53
local MOST = $MOST -- 2^52: the maximum of any count
local CENTURY = $CENTURY -- µs

-- divide returns floor(a/d) and the remainder. math.fmod is exact where % and / are not.
local function divide(a, d)
  local r = fmod(a, d)
  return (a - r) / d, r
end

-- muldiv returns floor(a·b/d), at most 2^53, and the remainder. If a double cannot hold the
-- product, muldiv divides bit by bit: no intermediate result is above 2^53 unless the quotient is.
local function muldiv(a, b, d)
  local product = a * b
  if product < TOP then return divide(product, d) end
  local bq, br = divide(b, d)
  local q, r, bit = 0, 0, MOST * 2
  repeat
    q = q + q
    if r >= d - r then q, r = q + 1, r - (d - r) else r = r + r end
    if a >= bit then
      a, q = a - bit, q + bq
      if r >= d - br then q, r = q + 1, r - (d - br) else r = r + br end
    end
    bit = bit / 2
  until bit < 1
  return min(q, TOP), r
end
