-- The sums' keys stand behind the others.
local ALL, KEYS, SUMS = KEYS, {}, {}
for i = 1, #ALL / 2 do KEYS[i], SUMS[i] = ALL[i], ALL[#ALL / 2 + i] end
