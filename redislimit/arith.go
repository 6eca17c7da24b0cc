package redislimit

import (
	"math"
	"math/bits"
)

// Times are whole microseconds. All figures stay below 2^53, so that the scripts,
// whose numbers are doubles, count them exactly.
const (
	century  = 876_600 * 3600 * int64(1e6) // µs
	most     = int64(1) << 52              // the most that is counted of anything
	anywhere = most                        // as far ahead as a leaky bucket's queue goes
)

// span is a time of us + frac/units microseconds, 0 ≤ frac < units.
type span struct{ us, frac int64 }

// mulDiv returns a·b/d and the remainder, for numbers that are not negative. A
// quotient above 2^53 is returned as 2^53.
func mulDiv(a, b, d int64) (q, r int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(d) {
		return most * 2, 0
	}
	uq, ur := bits.Div64(hi, lo, uint64(d))
	return int64(min(uq, uint64(most*2))), int64(ur)
}

// plus returns a + b, or the largest number if that is more.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
