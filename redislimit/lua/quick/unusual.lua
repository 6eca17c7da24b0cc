if not ok then break end -- the general case books it ahead, if possible
