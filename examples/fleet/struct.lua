local struct = {}
do
  -- widths returns the sizes in bytes of a format such as '>BI7', which is all there is.
  local known = {}
  local function widths(format)
    local w = known[format]
    if not w then
      w = {}
      for kind, digits in string.gmatch(string.sub(format, 2), '([BI])(%d*)') do
        w[#w + 1] = kind == 'B' and 1 or tonumber(digits)
      end
      known[format] = w
    end
    return w
  end

  function struct.pack(format, ...)
    local values, out = { ... }, {}
    for i, width in ipairs(widths(format)) do
      local v, bytes = values[i], {}
      for b = width, 1, -1 do
        local low = math.fmod(v, 256)
        bytes[b] = string.char(low)
        v = (v - low) / 256
      end
      out[i] = table.concat(bytes)
    end
    return table.concat(out)
  end

  function struct.unpack(format, text, pos)
    pos = pos or 1
    local out, n = {}, 0
    for _, width in ipairs(widths(format)) do
      if pos + width - 1 > #text then error('data string too short') end
      local v = 0
      for b = pos, pos + width - 1 do v = v * 256 + string.byte(text, b) end
      n = n + 1
      out[n], pos = v, pos + width
    end
    out[n + 1] = pos
    return unpack(out, 1, n + 1)
  end
end
