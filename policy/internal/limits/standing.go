package limits

import (
	"math"
	"math/bits"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/merge"
)

// Empty reports whether a decision under the rule's enforced limit leaves no unit. Then the rule denies even a cost of 0.
func Empty(d *ratelimit.Decision) bool {
	return d.Remaining <= 0 && d.Limit.Algorithm != ratelimit.AlgorithmUnlimited
}

// DenyEmpty turns a decision on a cost of 0 into a denial. Its RetryAfter is the time until the next unit.
func DenyEmpty(d ratelimit.Decision) ratelimit.Decision {
	d.Allowed, d.Delay, d.RetryAfter = false, 0, d.NextAfter
	return d
}

// Longer reports whether denial a lasts longer than denial b. A denial without an end lasts longest.
func Longer(a, b *ratelimit.Decision) bool {
	endless := func(d *ratelimit.Decision) bool { return d.RetryAfter == 0 }
	return !endless(b) && (endless(a) || a.RetryAfter > b.RetryAfter)
}

// RoomAfter returns the time until a key has room for a cost that does not fit now,
// computed from a decision's figures. It returns false if the figures are not enough:
// for sliding windows, for leaky buckets, and for a debt if periods differ in length.
func RoomAfter(d *ratelimit.Decision, cost int) (time.Duration, bool) {
	const longest = 50 * 365 * 24 * time.Hour // later instants may be capped
	units, per := int64(d.Limit.Rate.Units), int64(d.Limit.Rate.Per)
	if d.ResetAfter >= longest {
		return 0, false
	}
	switch d.Limit.Algorithm {
	case ratelimit.AlgorithmTokenBucket:
		high, low := bits.Mul64(uint64(d.Limit.Capacity()-cost), uint64(per))
		if high >= uint64(units) {
			return 0, false
		}
		sooner, _ := bits.Div64(high, low, uint64(units))
		return max(0, d.ResetAfter-time.Duration(min(sooner, math.MaxInt64))), true
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmCalendar:
		spent := SpentOf(d) // each window regains its units, and at the last window's end the key is fresh
		switch {
		case (spent+int64(cost)-1)/units > (spent-1)/units:
			return d.ResetAfter, true
		case d.Limit.Algorithm == ratelimit.AlgorithmFixedWindow:
			return max(0, d.ResetAfter-d.Limit.Rate.Per), true
		}
	}
	return 0, false
}

// SpentOf returns a key's spending, given a decision on the key.
func SpentOf(d *ratelimit.Decision) int64 {
	return int64(max(0, d.Limit.Capacity()-d.Remaining)) + int64(d.Debt)
}

// Room returns the caller's largest cost that fits under a rule, given the rule's
// decision. If own is true, the rule charges cost, whatever the caller's cost is.
func Room(d *ratelimit.Decision, own bool, cost int) int {
	if own {
		return merge.Room(int64(d.Remaining), int64(cost), 0)
	}
	return d.Remaining
}
