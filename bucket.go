package ratelimit

import (
	"math/bits"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

// TokenBucket returns a limit of at most burst + rate·t over any interval t. An
// idle key gathers up to burst, and may spend it at once.
//
// So TokenBucket(PerMinute(100), 100) admits up to 200 in a minute that follows a pause: 100 at
// once and 100 as they are regained. For at most 100 in any minute take half of each,
// TokenBucket(PerMinute(50), 50), or a [SlidingLog] of 100.
//
// What is spent is counted as a debt in time: the instant at which all is regained. Each cost
// moves that instant by its price, cost·per/units, and only the passing of time brings it
// closer; a cost passes while the instant is no further away than the price of the burst. So
// the bound holds for every interval, and no rate is rounded. This is the virtual scheduling
// algorithm of ITU-T I.371 (GCRA).
func TokenBucket(r Rate, burst int) Limit {
	return Limit{Algorithm: AlgorithmTokenBucket, Rate: r, Burst: burst}
}

// validateBucket is for token and leaky buckets: whatever they hold, it is regained within a
// century.
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

// refillBucket returns the time in which a full bucket's worth is regained, rounded up.
func (l Limit) refillBucket() time.Duration {
	ns, rem := meter.MulDiv(int64(l.Burst), int64(l.Rate.Per), int64(l.Rate.Units))
	return time.Duration(ns + min(rem, 1))
}
