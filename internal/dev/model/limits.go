package model

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

func windows(r ratelimit.Rate) []ratelimit.Limit {
	return []ratelimit.Limit{ratelimit.FixedWindow(r), ratelimit.SlidingLog(r), ratelimit.SlidingCounter(r)}
}

// Five returns one limit of each algorithm, with the same rate and capacity.
func Five(r ratelimit.Rate) []ratelimit.Limit {
	return append(windows(r), ratelimit.TokenBucket(r, r.Units), ratelimit.LeakyBucket(r, r.Units))
}

const Century = 100 * Year

// EdgeLimits are the last that New accepts on some side.
func EdgeLimits() []ratelimit.Limit {
	units, span := Whole(1<<53), time.Duration(Century)
	limits := []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(units, 1), math.MaxInt),
		ratelimit.TokenBucket(ratelimit.PerSecond(1), Whole(Century/int64(time.Second))),
		ratelimit.TokenBucket(ratelimit.PerDay(1), 36_525),
		ratelimit.TokenBucket(ratelimit.Per(3, math.MaxInt64), 1),
		ratelimit.TokenBucket(ratelimit.Per(units, span), units-1),
		ratelimit.TokenBucket(ratelimit.Per(units-1, span), 1),
		ratelimit.LeakyBucket(ratelimit.Per(units, 1), math.MaxInt),
		ratelimit.LeakyBucket(ratelimit.Per(3, math.MaxInt64), 1),
	}
	for _, r := range []ratelimit.Rate{
		ratelimit.Per(units, span), ratelimit.Per(1, span), ratelimit.Per(units, 1), ratelimit.Per(1, 1), ratelimit.Per(2, span),
	} {
		limits = append(limits, Five(r)...)
	}
	return limits
}

// Saturated are limits for debts without end: ordinary, fast, slow and extreme ones.
func Saturated() (limits []ratelimit.Limit) {
	for _, r := range []ratelimit.Rate{
		ratelimit.PerSecond(10), ratelimit.PerDay(1), ratelimit.PerSecond(Whole(3_000_000_019)), ratelimit.Per(7, 11*time.Second),
		ratelimit.Per(Whole(1<<53), 1), ratelimit.Per(2, time.Duration(Century/4)), ratelimit.Per(4, 1),
	} {
		limits = append(limits, Five(r)...)
	}
	return limits
}

// Year is a hundredth of the 100 years of the documentation.
const Year = int64(8766 * time.Hour)

// Whole is n as an int, or the largest there is where an int has 32 bits.
func Whole(n int64) int { return int(min(n, math.MaxInt)) }

// Rounds is how many seeds a property is tried with: n at its full size, a quarter of it for each change, and with -short still fewer,
// for variants that count by the same arithmetic.
func Rounds(n int) uint64 {
	if testing.Short() {
		return uint64(n / 20)
	}
	return uint64(testsize.Of(n/4, n))
}
