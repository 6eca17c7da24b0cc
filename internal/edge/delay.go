// Package delays tells whether a limiter may delay what it allows, and whether that can be
// undone if the delay is in vain.
package delays

import (
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// BooksAhead reports whether a Reserver may book budget that is still to come, as far as
// is known: unless its method BooksAhead() bool reports false.
func BooksAhead(reserver any) bool { return optional.BooksAhead(reserver) }

// May reports whether a limiter may delay what it allows: one of its limits is a leaky
// bucket, or is not known.
func May(limiter any) bool {
	l, ok := limiter.(ratelimit.LimitLister)
	if !ok {
		return true
	}
	limits := l.Limits()
	for _, limit := range limits {
		if limit.Algorithm == 0 || limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			return true
		}
	}
	return len(limits) == 0
}
