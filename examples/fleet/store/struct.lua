local struct = {}
do
  -- widths returns the sizes in bytes of a format such as '>BxI7', which is all there is:
  -- unsigned numbers, and bytes that are skipped, which are 0 here.
  local known = {}
  local function widths(format)
    local w = known[format]
    if not w then
      w = {}
      for kind, digits in string.gmatch(string.sub(format, 2), '(.)(%d*)') do
        w[#w + 1] = assert(kind == 'x' and 0 or kind == 'B' and 1 or kind == 'I' and tonumber(digits),
          'a format that this library does not know: ' .. format)
      end
      known[format] = w
    end
    return w
  end

  function struct.pack(format, ...)
    local values, n, out = { ... }, 0, {}
    for i, width in ipairs(widths(format)) do
      if width == 0 then
        out[i] = '\0'
      else
        n = n + 1
        local v, bytes = values[n], {}
        for b = width, 1, -1 do
          local low = math.fmod(v, 256)
          bytes[b] = string.char(low)
          v = (v - low) / 256
        end
        out[i] = table.concat(bytes)
      end
    end
    return table.concat(out)
  end

  function struct.unpack(format, text, pos)
    pos = pos or 1
    local out, n = {}, 0
    for _, width in ipairs(widths(format)) do
      if pos + math.max(width, 1) - 1 > #text then error('data string too short') end
      if width > 0 then
        local v = 0
        for b = pos, pos + width - 1 do v = v * 256 + string.byte(text, b) end
        n = n + 1
        out[n] = v
      end
      pos = pos + math.max(width, 1)
    end
    out[n + 1] = pos
    return unpack(out, 1, n + 1)
  end
end
