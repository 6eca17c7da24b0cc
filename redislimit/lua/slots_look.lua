-- The script writes nothing, so it only counts, and skips the ended members.
local function run()
  local waiting, oldest, alive = 0, reading, {}
  local members = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #members, 2 do
    local kind, rest, score = sub(members[i], 1, 1), sub(members[i], 2), tonumber(members[i + 1])
    if score > reading then
      if kind == 'o' or kind == 'q' then alive[rest] = true end
      if kind == 'p' or kind == 'g' then used = used + slots_of(rest) end
      if kind == 'p' then oldest = math.min(oldest, token_of(rest, score)) end
    end
  end
  for i = 1, #members, 2 do
    if sub(members[i], 1, 1) ~= 'w' then break end
    if alive[process_of(sub(members[i], 2))] then waiting = waiting + 1 end
  end
  return pack('>I7I7I7', used, waiting, math.max(0, reading - oldest))
end
