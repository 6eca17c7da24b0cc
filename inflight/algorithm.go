package inflight

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// tuning holds the options of an algorithm, with their defaults filled in.
type tuning struct {
	algorithm  string
	min, start int
	window     int
	timeout    time.Duration // 0 for none
}

// newTuning fills in the defaults.
func newTuning(algorithm string, least, start, window int, timeout time.Duration) tuning {
	return tuning{algorithm, cmp.Or(least, 1), cmp.Or(start, startLimit), cmp.Or(window, minSamples), timeout}
}

func (t *tuning) validate() error {
	switch {
	case t.min < 1:
		return fmt.Errorf("inflight: %sOptions.Min is %d, want 0 for the default or more", t.algorithm, t.min)
	case t.start < 1:
		return fmt.Errorf("inflight: %sOptions.Start is %d, want 0 for the default or more", t.algorithm, t.start)
	case t.window < 1:
		return fmt.Errorf("inflight: %sOptions.Window is %d, want 0 for the default or more", t.algorithm, t.window)
	case t.timeout < 0:
		return fmt.Errorf("inflight: %sOptions.Timeout is %v, want 0 for none or more", t.algorithm, t.timeout)
	}
	return nil
}

// level is an algorithm's limit, with its fraction and within its bounds.
type level struct {
	tuning
	limit float64
	drops drops
}

func newLevel(t tuning) level {
	l := level{tuning: t, limit: float64(t.start), drops: drops{trust: firstTrust}}
	l.set(l.limit, 0)
	return l
}

// Window returns the minimum number of outcomes in a window.
func (l *level) Window() int { return l.window }

// Limit returns the limit in whole units.
func (l *level) Limit() int { return int(min(l.limit+0.5, math.MaxInt/2)) }

// set moves the limit, to within its bounds and the key's, and returns it.
func (l *level) set(limit float64, bound int) int {
	l.limit = max(limit, float64(l.min))
	if bound > 0 {
		l.limit = min(l.limit, float64(bound))
	}
	return l.Limit()
}

// stuck reports whether the limit is at its upper bound.
func (l *level) stuck(s Sample) bool {
	return s.Max > 0 && l.limit >= float64(s.Max)
}

// idle reports whether the callers, and not the backend, bound the work in flight: then
// the limit must not grow, as nothing has shown that the backend can do more.
func (l *level) idle(s Sample) bool { return 2*s.InFlight < l.Limit() }
