package ratelimit

// A fixed window in numbers. With FixedWindow(PerMinute(10)), for one key:
//
//	at     take  allowed  remaining  retry after  reset after
//	20s    8     true     2          0s           1m0s
//	50s    5     false    2          30s          30s
//	1m15s  2     true     0          0s           5s
//	1m20s  10    true     0          0s           1m0s
//	3m20s  1     true     9          0s           1m0s
//
// The key's first spending at 20s begins a window until 1m20s. Until then 10 units are allowed; at 1m20s
// the count begins again. From 1m15s to 1m20s, 12 units pass, because an interval as long as a window
// meets at most two windows. So the bound is twice r.Units. The window that began at 1m20s ends at 2m20s,
// and the next begins with the next spending, at 3m20s. It is counted in internal/meter/fixedwindow.go.
//
// A sliding counter in numbers. With SlidingCounter(PerMinute(10)), for one key:
//
//	at     take  allowed  remaining  retry after  reset after
//	0s     6     true     4          0s           2m0s
//	50s    5     false    4          20s          1m10s
//	1m0s   4     true     0          0s           2m0s
//	1m30s  4     false    3          10s          1m30s
//	1m30s  3     true     0          0s           1m30s
//	1m50s  2     true     0          0s           1m10s
//
// Windows are from 0s to 1m and from 1m to 2m. At 1m all 6 units of the first window still count, and 4
// more pass. At 1m30s half the first window is within the last minute, so 3 of its 6 units count: with the
// 4 of this window the sum is 7, and 3 remain. At 1m50s a sixth of the first window counts, 1 unit, and 7
// of this window. A fractional share is rounded up. It is counted in internal/meter/slidingcounter.go.

// FixedWindow returns a limit of r.Units in each window of r.Per. A key's window begins with its first spending, and
// its next with the first spending after the window's end. So up to twice r.Units may pass around a window's end.
func FixedWindow(r Rate) Limit { return Limit{Algorithm: AlgorithmFixedWindow, Rate: r} }

// SlidingCounter returns a limit that approximates a sliding window of r.Per. It counts the spending in the present
// window and in the previous one. The previous count is weighted: by the fraction of its window within the last r.Per.
// A cost passes if it and both counts add up to at most r.Units. In each window at most r.Units pass. Over any span of
// r.Per at most r.Units pass if the spending in the previous window was even, and up to twice as many otherwise.
func SlidingCounter(r Rate) Limit { return Limit{Algorithm: AlgorithmSlidingCounter, Rate: r} }

// validateWindow checks the limits with a number of units for each window: the two of this file, and the sliding log.
func (l Limit) validateWindow() error {
	if err := l.validateRate(); err != nil {
		return err
	}
	if l.Burst != 0 {
		return invalid("Burst is %d, want 0 for %v", l.Burst, l.Algorithm)
	}
	if int64(l.Rate.Per) > century {
		return invalid("Rate.Per is %v, want at most 100 years", l.Rate.Per)
	}
	return nil
}
