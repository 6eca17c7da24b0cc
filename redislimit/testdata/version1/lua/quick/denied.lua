if not ok then return '-' .. sec .. '.' .. usec .. body end
