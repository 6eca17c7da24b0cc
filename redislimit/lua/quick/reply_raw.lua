return pack('>BI7', ok and 6 or 5, reading) .. (raw or '')
