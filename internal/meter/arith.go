package meter

import "math/bits"

// GCD returns the greatest common divisor of two numbers above 0.
func GCD(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Mul returns a·b for numbers that are not negative, or true if that overflows.
func Mul(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi != 0 || int64(lo) < 0
}

// MulDiv returns a·b/d and the remainder, for numbers that are not negative and a
// quotient below 2^63. The product has 128 bits.
func MulDiv(a, b, d int64) (q, r int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi == 0 {
		return int64(lo / uint64(d)), int64(lo % uint64(d))
	}
	uq, ur := bits.Div64(hi, lo, uint64(d))
	return int64(uq), int64(ur)
}
