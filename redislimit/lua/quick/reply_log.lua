local verdict = ok and 1 or 0
return pack('>BI7BI3BI7I7I7I7I7', verdict, reading, verdict, gen, changes, now, was, had, m, 0)
