package inflight

import (
	"cmp"
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
)

// tuning holds the algorithm's options, with their defaults filled in.
type tuning struct {
	min, start int
	timeout    time.Duration // 0 for no timeout
}

func (t *tuning) validate() error {
	return cmp.Or(
		optional.NotNegative("inflight: LearnOptions.Min", t.min, "the default"),
		optional.NotNegative("inflight: LearnOptions.Start", t.start, "the default"),
		optional.NotNegative("inflight: LearnOptions.Timeout", t.timeout, "none"),
	)
}

// level is an algorithm's limit, with a fraction and within its bounds.
type level struct {
	tuning
	limit float64
	drops drops
}

const (
	backoff = 0.9 // the factor of the limit after a dropped window
	tiny    = 0.5 // the growth of a limit near the value where drops began
	beyond  = 1.2 // above this multiple of the value, the backend must have grown
)

func newLevel(t tuning) level {
	l := level{tuning: t, limit: float64(t.start), drops: drops{trust: firstTrust}}
	l.set(l.limit, 0)
	return l
}

// Limit returns the limit in whole units.
func (l *level) Limit() int { return int(min(l.limit+0.5, math.MaxInt/2)) }

// set changes the limit, within its own bounds and the key's, and returns it.
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

// idle reports whether the callers bound the work in flight, and not the backend. Then
// the limit must not grow, because there is no evidence that the backend can do more.
func (l *level) idle(s Sample) bool { return 2*s.InFlight < l.Limit() }
