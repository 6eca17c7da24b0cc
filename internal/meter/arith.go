package meter

import (
	"math"
	"math/bits"
)

// never is an instant before all others.
const never = math.MinInt64

// farAhead is above every booking's distance from now. It can be subtracted from any instant.
const farAhead = math.MaxInt64 / 2

// Add returns a + b, or the largest number if the sum overflows. It does not check for sums below the smallest number.
func Add(a, b int64) int64 {
	if c := a + b; c >= a || b < 0 {
		return c
	}
	return math.MaxInt64
}

// Mul returns a·b for non-negative numbers, or true if the product overflows.
func Mul(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi != 0 || int64(lo) < 0
}

// MulDiv returns a·b/d and the remainder, for non-negative numbers and a quotient below 2^63. The product has 128 bits.
func MulDiv(a, b, d int64) (q, r int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi == 0 {
		return int64(lo / uint64(d)), int64(lo % uint64(d))
	}
	uq, ur := bits.Div64(hi, lo, uint64(d))
	return int64(uq), int64(ur)
}

// GCD returns the greatest common divisor of two numbers above 0.
func GCD(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// left returns the remaining part of a capacity, or the debt if the difference is below 0.
func left(n int64) (remaining, debt int64) { return max(0, n), max(0, -n) }

// span is a time of ticks + frac/units ticks, 0 ≤ frac < units. The units
// are those of the bucket's rate in lowest terms, so each rate is exact.
type span struct{ ticks, frac int64 }

func (d span) less(e span) bool { return d.ticks < e.ticks || d.ticks == e.ticks && d.frac < e.frac }
