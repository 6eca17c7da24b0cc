for _, i in ipairs(rest) do
  local ran, answer = pcall(decide, i, i)
  answers[i] = ran and answer or ''
end
return answers
