local struct = {}
do
  -- fields returns the kinds and the sizes in bytes of a format such as
  -- '>c15BxI7'. It supports only texts, unsigned numbers and skipped bytes.
  local known = {}
  local function fields(format)
    local f = known[format]
    if not f then
      f = {}
      for kind, digits in string.gmatch((string.gsub(format, '^>', '')), '(.)(%d*)') do
        assert(string.find('xBIc', kind, 1, true), 'a format that this library does not know: ' .. format)
        f[#f + 1] = { kind = kind, size = tonumber(digits) or 1 }
      end
      known[format] = f
    end
    return f
  end

  local function number(v, size)
    local bytes = {}
    for b = size, 1, -1 do
      local low = math.fmod(v, 256)
      bytes[b] = string.char(low)
      v = (v - low) / 256
    end
    return table.concat(bytes)
  end

  function struct.pack(format, ...)
    local values, n, out = { ... }, 0, {}
    for i, f in ipairs(fields(format)) do
      if f.kind == 'x' then
        out[i] = '\0'
      else
        n = n + 1
        out[i] = f.kind == 'c' and string.sub(values[n], 1, f.size) or number(values[n], f.size)
      end
    end
    return table.concat(out)
  end

  function struct.unpack(format, text, pos)
    pos = pos or 1
    local out, n = {}, 0
    for _, f in ipairs(fields(format)) do
      if pos + f.size - 1 > #text then error('data string too short') end
      if f.kind ~= 'x' then
        n = n + 1
        if f.kind == 'c' then
          out[n] = string.sub(text, pos, pos + f.size - 1)
        else
          local v = 0
          for b = pos, pos + f.size - 1 do v = v * 256 + string.byte(text, b) end
          out[n] = v
        end
      end
      pos = pos + f.size
    end
    out[n + 1] = pos
    return unpack(out, 1, n + 1)
  end
end
