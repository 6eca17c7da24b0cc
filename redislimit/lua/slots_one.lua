if whole then whole.begin() end
enter(KEYS[1])
local answer = run(ask)
if whole then whole.finish() end
return answer
