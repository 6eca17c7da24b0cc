if not ok then break end -- it is to be booked ahead, if that is possible
