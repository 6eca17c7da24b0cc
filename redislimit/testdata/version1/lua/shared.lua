for _, i in ipairs(rest) do answers[i] = decide(i, i) end
return answers
