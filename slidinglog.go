package ratelimit

// A sliding log in numbers. With SlidingLog(PerMinute(10)), for one key:
//
//	at     take  allowed  remaining  retry after  reset after
//	0s     4     true     6          0s           1m0s
//	30s    6     true     0          0s           1m0s
//	50s    1     false    0          10s          40s
//	1m0s   4     true     0          0s           1m0s
//	1m1s   1     false    0          29s          59s
//	1m30s  5     true     1          0s           1m0s
//
// Each spending counts for one minute: the 4 units of 0s until 1m, the 6 of 30s until 1m30s. At 50s all 10 count, and the next
// unit is free in 10s. At 1m, 4 units no longer count, and 4 pass. At 1m1s the next to leave are the 6 of 30s. At 1m30s
// only the 4 of 1m count: 6 remain, of which 5 are taken.
//
// A cost passes if its sum with all counting units is at most r.Units, so no
// interval of length r.Per has more. It is counted in internal/meter/slidinglog.go.

// SlidingLog returns a limit of r.Units in any window of length r.Per, exactly. Each spending within
// the last r.Per takes 16 bytes, and for a time up to 64. Spendings at one instant count as one.
func SlidingLog(r Rate) Limit { return Limit{Algorithm: AlgorithmSlidingLog, Rate: r} }

// The figures of a sliding log are the same as a fixed window's, and validateWindow checks them.
