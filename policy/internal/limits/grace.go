package limits

import (
	"math"
	"math/bits"

	"github.com/weir-go/ratelimit"
)

// Grace is a rule's additional share of its limit, in per cent. 0 adds nothing. A rule with a grace enforces a
// larger limit: it holds its budgets and denies under that limit. Its decisions are shown under the file's limit.
type Grace int

// of returns how many units a grace adds to units.
func (g Grace) of(units int) int {
	high, low := bits.Mul64(uint64(max(0, units)), uint64(g))
	extra, _ := bits.Div64(high, low, 100) // high is below 100, because the grace is at most 100
	return int(min(extra, uint64(math.MaxInt-max(0, units))))
}

// Enforced returns the limit that the rule enforces, given the file's limit.
func (g Grace) Enforced(l ratelimit.Limit) ratelimit.Limit {
	if g == 0 || !Counts(l) {
		return l
	}
	if l.Burst > 0 {
		l.Burst += g.of(l.Burst)
	} else {
		l.Rate.Units += g.of(l.Rate.Units)
	}
	return l
}

// Shown is Enforced's inverse.
func (g Grace) Shown(l ratelimit.Limit) ratelimit.Limit {
	if g == 0 || !Counts(l) {
		return l
	}
	less := func(units int) int { // the enforced limit grows with its units, so only one number leads to it
		low, high := 0, units
		for low < high {
			if middle := low + (high-low)/2; middle+g.of(middle) < units {
				low = middle + 1
			} else {
				high = middle
			}
		}
		return low
	}
	if l.Burst > 0 {
		l.Burst = less(l.Burst)
	} else {
		l.Rate.Units = less(l.Rate.Units)
	}
	return l
}

// Show returns a rule's decision under the file's limit. Remaining is lower by the grace. If it would be negative, Debt is
// positive instead. If nothing remains, NextAfter counts the grace, too, and is 0 if the decision's figures are not enough.
func (g Grace) Show(d ratelimit.Decision) ratelimit.Decision {
	if g == 0 || !Counts(d.Limit) || d.Limit.Algorithm == 0 {
		return d
	}
	limit := g.Shown(d.Limit)
	extra := d.Limit.Capacity() - limit.Capacity()
	if extra > 0 && d.Remaining <= extra && limit.Capacity() > 0 {
		d.NextAfter, _ = RoomAfter(&d, extra+1)
	}
	d.Limit = limit
	if left := d.Remaining - extra; left >= 0 {
		d.Remaining = left
		return d
	} else if d.Debt == 0 {
		d.Remaining, d.Debt = 0, -left
		return d
	}
	d.Remaining, d.Debt = 0, d.Debt+min(extra, math.MaxInt-d.Debt)
	return d
}
