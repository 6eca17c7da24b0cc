package ratelimit

import (
	"math"
	"math/bits"
	"time"
)

// century bounds every span of time that a budget is counted in: the time in which a
// whole capacity is regained, how far ahead is booked, and the debt of one key.
const century = 876_600 * int64(time.Hour)

// mostCounted bounds what a key may owe, so that a sum of two debts does not overflow.
const mostCounted = math.MaxInt64 / 2

// between returns the time from one instant to a later one, at most the longest Duration.
func between(from, to int64) time.Duration {
	d := to - from
	if d < 0 { // it overflowed
		return math.MaxInt64
	}
	return time.Duration(d)
}

// span is a time of ns + frac/units nanoseconds, 0 ≤ frac < units. The units are those of
// the bucket that counts in it, in lowest terms, so no rate needs rounding.
type span struct{ ns, frac int64 }

func (d span) less(e span) bool { return d.ns < e.ns || d.ns == e.ns && d.frac < e.frac }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mul returns a·b for numbers that are not negative, or true if that overflows.
func mul(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi != 0 || int64(lo) < 0
}

// mulDiv returns a·b/d and the remainder, for numbers that are not negative and a
// quotient below 2^63. The product has 128 bits.
func mulDiv(a, b, d int64) (q, r int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi == 0 {
		return int64(lo / uint64(d)), int64(lo % uint64(d))
	}
	uq, ur := bits.Div64(hi, lo, uint64(d))
	return int64(uq), int64(ur)
}

// satAdd returns a + b, or the largest number if that overflows. It does not guard against
// sums below the smallest.
func satAdd(a, b int64) int64 {
	if c := a + b; c >= a || b < 0 {
		return c
	}
	return math.MaxInt64
}
