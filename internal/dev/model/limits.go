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

// Five returns limits of five algorithms, all but Calendar and Concurrent, with the same rate and capacity.
func Five(r ratelimit.Rate) []ratelimit.Limit {
	return append(windows(r), ratelimit.TokenBucket(r, r.Units), ratelimit.LeakyBucket(r, r.Units))
}

const Century = 100 * Year

// EdgeLimits returns limits just within New's bounds.
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

// Saturated returns ordinary, fast, slow and extreme limits, for tests of very large debts.
func Saturated() (limits []ratelimit.Limit) {
	for _, r := range []ratelimit.Rate{
		ratelimit.PerSecond(10), ratelimit.PerDay(1), ratelimit.PerSecond(Whole(3_000_000_019)), ratelimit.Per(7, 11*time.Second),
		ratelimit.Per(Whole(1<<53), 1), ratelimit.Per(2, time.Duration(Century/4)), ratelimit.Per(4, 1),
	} {
		limits = append(limits, Five(r)...)
	}
	return limits
}

// Year is a hundredth of the documented 100 years.
const Year = int64(8766 * time.Hour)

// Whole returns n, or the largest int if an int has 32 bits and n is larger.
func Whole(n int64) int { return int(min(n, math.MaxInt)) }

// Rounds returns how many seeds test a property: n at full size, and a quarter of n for
// each change. With -short, for variants with the same arithmetic, it returns n/20.
func Rounds(n int) uint64 {
	if testing.Short() {
		return uint64(n / 20)
	}
	return uint64(testsize.Of(n/4, n))
}
