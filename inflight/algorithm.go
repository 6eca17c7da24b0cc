package inflight

import (
	"fmt"
	"math"
	"time"
)

// Option changes an algorithm. A bad value, or an option that the algorithm does not have, is an error of
// [New].
type Option func(*tuning)

// Min is the limit below which an algorithm does not go, except for the key's upper bound. If not given, 1.
func Min(limit int) Option { return func(t *tuning) { t.min = limit } }

// Start is the limit that an algorithm starts with. If not given, 20.
func Start(limit int) Option { return func(t *tuning) { t.start = limit } }

// Timeout makes [AIMD] count a window whose mean time is above d as Dropped. If not given, none does.
func Timeout(d time.Duration) Option { return func(t *tuning) { t.timeout = &d } }

// Tolerance is how many times its baseline a latency may be before [Gradient] lowers the limit. If not given,
// 1.5.
func Tolerance(ratio float64) Option { return func(t *tuning) { t.tolerance = &ratio } }

// Headroom is the shortest queue that [Gradient] allows in the backend, in units. If not given, 4.
func Headroom(n int) Option { return func(t *tuning) { t.headroom = &n } }

// Window is how many outcomes a window has at least. More make the limit steadier, and slower. If not given,
// 20.
func Window(count int) Option { return func(t *tuning) { t.window = count } }

// tuning is what the options say.
type tuning struct {
	algorithm  string
	min, start int
	window     int
	timeout    *time.Duration
	tolerance  *float64
	headroom   *int
}

func tune(algorithm string, opts []Option) tuning {
	t := tuning{algorithm: algorithm, min: 1, start: startLimit, window: minSamples}
	for _, o := range opts {
		o(&t)
	}
	return t
}

// has says which options of its own an algorithm has.
func (t *tuning) has(timeout, tolerance bool) error {
	switch {
	case t.timeout != nil && !timeout:
		return fmt.Errorf("inflight: %s has no option Timeout", t.algorithm)
	case t.tolerance != nil && !tolerance:
		return fmt.Errorf("inflight: %s has no option Tolerance", t.algorithm)
	case t.headroom != nil && !tolerance:
		return fmt.Errorf("inflight: %s has no option Headroom", t.algorithm)
	case t.headroom != nil && *t.headroom < 1:
		return fmt.Errorf("inflight: %s's Headroom is %d, want 1 or more", t.algorithm, *t.headroom)
	case t.window < 1:
		return fmt.Errorf("inflight: %s's Window is %d, want 1 or more", t.algorithm, t.window)
	case t.min < 1:
		return fmt.Errorf("inflight: %s's Min is %d, want 1 or more", t.algorithm, t.min)
	case t.start < 1:
		return fmt.Errorf("inflight: %s's Start is %d, want 1 or more", t.algorithm, t.start)
	}
	return nil
}

// level is an algorithm's limit, with its fraction and within its bounds.
type level struct {
	tuning
	limit float64
}

func newLevel(t tuning) level {
	l := level{tuning: t, limit: float64(t.start)}
	l.set(l.limit, 0)
	return l
}

// Window returns how many outcomes a window has at least.
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

// idle reports whether the callers, and not the backend, bound what is in flight: then
// the limit must not grow, as nothing has shown that the backend can do more.
func (l *level) idle(s Sample) bool { return 2*s.InFlight < l.Limit() }
