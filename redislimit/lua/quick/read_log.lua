-- A usual key is new, or in a plain state of the kind and the call's figures. x is the cost, y the units, z per.
local now, at, n, body = reading, reading, 0, raw or ''
local ok, expiry, needed, value, life
