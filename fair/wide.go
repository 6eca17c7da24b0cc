package fair

import "math/bits"

// Amounts are counted in fractions of a unit, so shares by weight are whole numbers.
const (
	fractionBits = 20
	fraction     = 1 << fractionBits
)

// wide is an unsigned number of 128 bits: the product of two 64-bit numbers.
type wide struct{ hi, lo uint64 }

func product(a, b uint64) wide {
	hi, lo := bits.Mul64(a, b)
	return wide{hi, lo}
}

func (a wide) less(b wide) bool { return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo }

func (a wide) plus(n uint64) wide {
	lo, carry := bits.Add64(a.lo, n, 0)
	return wide{a.hi + carry, lo}
}

// minus returns a − b, but at least 0.
func (a wide) minus(b wide) wide {
	if a.less(b) {
		return wide{}
	}
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	return wide{a.hi - b.hi - borrow, lo}
}

// times returns a·n. The product must not exceed 128 bits.
func (a wide) times(n uint64) wide {
	w := product(a.lo, n)
	w.hi += a.hi * n
	return w
}

// over returns a/n and the remainder. A quotient of more than 62 bits counts as most.
func (a wide) over(n uint64) (q, r uint64) {
	if a.hi == 0 {
		q, r = a.lo/n, a.lo%n
	} else if a.hi < n {
		q, r = bits.Div64(a.hi, a.lo, n)
	} else {
		q = most
	}
	return min(q, most), r
}

// up returns a/n, rounded up.
func (a wide) up(n uint64) uint64 {
	q, r := a.over(n)
	return q + min(r, 1)
}

// most is the largest amount. Two amounts up to most can be added as signed numbers.
const most = 1 << 62

// parts converts a number of units into fractions of a unit. A number too large counts as the largest possible one.
func (a wide) parts() wide {
	if a.hi >= 1<<(62-fractionBits) {
		a = wide{hi: 1<<(62-fractionBits) - 1}
	}
	return wide{a.hi<<fractionBits | a.lo>>(64-fractionBits), a.lo << fractionBits}
}
