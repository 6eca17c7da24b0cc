package failover

import (
	"math"
	"math/big"
	"time"

	"github.com/weir-go/ratelimit"
)

// Share returns a share of limit for each of several nodes that decide alone. For a bucket it divides the rate and
// the burst. The burst stays at least 1. For a window, a log or Concurrent it divides the units, and rounds up.
func Share(limit ratelimit.Limit, nodes int) ratelimit.Limit {
	if nodes < 2 || limit.Validate() != nil {
		return limit
	}
	switch limit.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		limit.Burst = max(1, limit.Burst/nodes)
		limit.Rate = slower(limit.Rate, nodes, limit.Burst)
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter, ratelimit.AlgorithmCalendar,
		ratelimit.AlgorithmConcurrent:
		limit.Rate.Units = 1 + (limit.Rate.Units-1)/nodes
	}
	return limit
}

// century is the maximum time to regain a valid bucket's burst.
const century = 876_600 * time.Hour

// slower returns a rate divided by n. It divides by a little more if no Duration is n times as
// long. A bucket with the given burst is still regained within a century, as each limit must be.
func slower(r ratelimit.Rate, n, burst int) ratelimit.Rate {
	units, longest := big.NewInt(int64(r.Units)), big.NewInt(math.MaxInt64)
	per := new(big.Int).Mul(big.NewInt(int64(r.Per)), big.NewInt(int64(n)))
	if per.Cmp(longest) > 0 { // units in the longest Duration
		units.Mul(units, longest)
		units.Div(units, per)
		r.Units, per = max(1, int(units.Int64())), longest
	}
	most := new(big.Int).Mul(big.NewInt(int64(century)), big.NewInt(int64(r.Units))) // burst · per / units ≤ century
	if most.Div(most, big.NewInt(int64(burst))); most.Cmp(per) < 0 {
		per = most
	}
	r.Per = time.Duration(per.Int64())
	return r
}
