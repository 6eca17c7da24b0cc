-- A key's permits, in the order of their ends: attempt, slots, the times
-- of grant and end, and the process's text. The script writes nothing.
local function run()
  local all = {}
  local members = call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', reading), '+inf', 'WITHSCORES')
  for i = 1, #members, 2 do
    local rest = sub(members[i], 2)
    if sub(members[i], 1, 1) == 'p' then
      local text = sub(rest, $REQUEST + 1)
      all[#all + 1] = attempt_of(rest) .. pack('>I7I7I7I7', slots_of(rest), token_of(rest, members[i + 1]), members[i + 1], #text) .. text
    end
  end
  return table.concat(all)
end
