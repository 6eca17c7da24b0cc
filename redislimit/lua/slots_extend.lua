local function run(request)
  open()
  local ends = exists and call('ZSCORE', key, 'p' .. request)
  if ends then renew(request, ends) end
  close()
  return pack('>BI7', ends and 1 or 0, reading)
end
