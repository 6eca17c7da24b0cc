package ratelimit

import (
	"math/bits"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

// A token bucket in numbers. With TokenBucket(PerSecond(10), 20), for one key:
//
//	at     take  allowed  remaining  retry after  reset after
//	0s     15    true     5          0s           1.5s
//	500ms  12    false    10         200ms        1s
//	700ms  12    true     0          0s           2s
//	1.2s   3     true     2          0s           1.8s
//	3s     20    true     0          0s           2s
//
// A unit is regained in 100ms, so 15 units cost 1.5s. A key's state is one instant: the time when all is
// regained. At 0s it is now, and the cost moves it to 1.5s. At 500ms, 5 of the 15 are regained and 10 remain; a
// cost of 12 lacks 2 units, which takes 200ms. At 700ms it fits, and moves the instant from 1.5s to 2.7s. From
// then on nothing remains until time passes. At 3s the instant has passed, and the key has its whole burst.
//
// A cost passes while the instant stays within burst units of now: 2s here. Only time brings it closer, so over any
// interval at most burst + rate·t passes. Instants are whole nanoseconds with a fraction of a unit, so no rate is rounded.
// This is the virtual scheduling algorithm of ITU-T I.371 (GCRA). It is counted in internal/meter/bucket.go.

// TokenBucket returns a limit of at most burst + rate·t over any interval t. An idle key gathers up to burst, and may spend it
// at once: TokenBucket(PerMinute(100), 100) admits up to 200 in the minute after a pause. For at most 100 in any minute,
// take TokenBucket(PerMinute(50), 50) or a [SlidingLog].
func TokenBucket(r Rate, burst int) Limit {
	return Limit{Algorithm: AlgorithmTokenBucket, Rate: r, Burst: burst}
}

// validateBucket is for token and leaky buckets: it bounds their
// figures, so that a whole capacity is regained within a century.
func (l Limit) validateBucket() error {
	if err := l.validateRate(); err != nil {
		return err
	}
	if l.Burst <= 0 {
		return invalid("Burst is %d, want at least 1", l.Burst)
	}
	// burst · per / units ≤ century, in 128 bits.
	hi, lo := bits.Mul64(uint64(l.Burst), uint64(l.Rate.Per))
	top, low := bits.Mul64(uint64(century), uint64(l.Rate.Units))
	if hi > top || hi == top && lo > low {
		return invalid("Burst %d at %d per %v takes more than 100 years to regain",
			l.Burst, l.Rate.Units, l.Rate.Per)
	}
	return nil
}

// refillBucket returns the time in which a full bucket is regained, rounded up.
func (l Limit) refillBucket() time.Duration {
	ns, rem := meter.MulDiv(int64(l.Burst), int64(l.Rate.Per), int64(l.Rate.Units))
	return time.Duration(ns + min(rem, 1))
}
