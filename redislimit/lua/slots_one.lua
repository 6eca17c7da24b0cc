if whole then whole.begin() end
enter(KEYS[1])
local answer = run(payload)
if whole then whole.finish() end
return answer
