if ok and allowed then
  --SPEND
end
allowed = allowed and ok
keys[i], values[i], lives[i] = key, value, life
answer[2 * i], answer[2 * i + 1] = ok and '+' or '-', body
seen = i
