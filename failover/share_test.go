package failover_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestShareOfALimit(t *testing.T) {
	month := ratelimit.Calendar(100, ratelimit.Month("UTC", 1))
	third := month
	third.Rate.Units = 34
	for _, c := range []struct {
		limit ratelimit.Limit
		nodes int
		want  ratelimit.Limit
	}{
		{ratelimit.TokenBucket(ratelimit.PerSecond(60), 60).Named("client"), 3, ratelimit.TokenBucket(ratelimit.Per(60, 3*time.Second), 20).Named("client")},
		{ratelimit.TokenBucket(ratelimit.PerSecond(5), 5), 8, ratelimit.TokenBucket(ratelimit.Per(5, 8*time.Second), 1)},
		{ratelimit.LeakyBucket(ratelimit.PerSecond(10), 25), 4, ratelimit.LeakyBucket(ratelimit.Per(10, 4*time.Second), 6)},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), 8, ratelimit.FixedWindow(ratelimit.PerMinute(13))},
		{ratelimit.SlidingLog(ratelimit.PerMinute(100)), 10, ratelimit.SlidingLog(ratelimit.PerMinute(10))},
		{ratelimit.SlidingCounter(ratelimit.PerMinute(2)), 3, ratelimit.SlidingCounter(ratelimit.PerMinute(1))},
		{month, 3, third},
		{ratelimit.Unlimited(), 3, ratelimit.Unlimited()},
		{ratelimit.Blocked().Named("no"), 3, ratelimit.Blocked().Named("no")},
		{ratelimit.Limit{}, 3, ratelimit.Limit{}},
		{ratelimit.TokenBucket(ratelimit.PerSecond(-1), 5), 3, ratelimit.TokenBucket(ratelimit.PerSecond(-1), 5)},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), 1, ratelimit.FixedWindow(ratelimit.PerMinute(100))},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), 0, ratelimit.FixedWindow(ratelimit.PerMinute(100))},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), math.MinInt, ratelimit.FixedWindow(ratelimit.PerMinute(100))},
		{ratelimit.FixedWindow(ratelimit.PerMinute(math.MaxInt32)), math.MaxInt, ratelimit.FixedWindow(ratelimit.PerMinute(1))},
	} {
		assert.Equal(t, c.want, failover.Share(c.limit, c.nodes), "%v for %d", c.limit, c.nodes)
	}
}

// randomLimit returns a valid limit, with figures of all sizes.
func randomLimit(r *rand.Rand) ratelimit.Limit {
	size := func(most float64) int64 { return 1 + int64(math.Exp(r.Float64()*math.Log(most))) }
	for {
		rate := ratelimit.Per(int(size(min(1<<52, math.MaxInt))), time.Duration(size(3e18)))
		if r.IntN(2) == 0 {
			rate = ratelimit.Per(int(size(1000)), time.Duration(size(1e13)))
		}
		for _, l := range []ratelimit.Limit{
			ratelimit.TokenBucket(rate, int(size(1e9))), ratelimit.LeakyBucket(rate, int(size(1e4))),
			ratelimit.FixedWindow(rate), ratelimit.SlidingLog(rate), ratelimit.SlidingCounter(rate),
			ratelimit.Calendar(int(size(1e6)), ratelimit.Day("UTC")),
		}[r.IntN(6):] {
			if l.Validate() == nil {
				return l
			}
		}
	}
}

// Each share is valid. All shares' capacities add up to less than the limit's plus one unit for each node.
// Their rates add up to at most the limit's, or to one unit a century for each node, if that is more.
func TestSharesAddUpToTheLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(38, 7))
	shared := 0
	for range 20000 {
		limit, nodes := randomLimit(r), 2+r.IntN(1+r.IntN(1<<r.IntN(min(40, strconv.IntSize-1))))
		share := failover.Share(limit, nodes)
		at := fmt.Sprintf("%v for %d: %v", limit, nodes, share)
		require.NoError(t, share.Validate(), at)
		require.Equal(t, limit.Algorithm, share.Algorithm, at)
		total := new(big.Int).Mul(big.NewInt(int64(share.Capacity())), big.NewInt(int64(nodes)))
		require.Negative(t, total.Cmp(big.NewInt(int64(limit.Capacity())+int64(nodes))), at)
		if limit.Burst == 0 {
			require.GreaterOrEqual(t, total.Cmp(big.NewInt(int64(limit.Capacity()))), 0, "%s: windows are rounded up", at)
			require.Equal(t, limit.Rate.Per, share.Rate.Per, at)
			require.Equal(t, limit.Period, share.Period, at)
			continue
		}
		// nodes · units(share) · per(limit) ≤ units(limit) · per(share)
		left := new(big.Int).Mul(big.NewInt(int64(share.Rate.Units)), big.NewInt(int64(limit.Rate.Per)))
		left.Mul(left, big.NewInt(int64(nodes)))
		right := new(big.Int).Mul(big.NewInt(int64(limit.Rate.Units)), big.NewInt(int64(share.Rate.Per)))
		if left.Cmp(right) > 0 {
			require.Greater(t, share.RefillTime(), 876_599*time.Hour, "%s: slower would not be valid", at)
			continue
		}
		shared++
	}
	require.Greater(t, shared, 5000)
}

// Nodes spend their whole shares at the worst instants. They exceed the limit by less than one unit for each node and window.
func TestNodesWithSharesStayWithinTheLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 38))
	for range 300 {
		units, per := 1+r.IntN(60), time.Duration(1+r.IntN(10))*time.Second
		rate := ratelimit.Per(units, per)
		burst := 1 + r.IntN(60)
		limit := []ratelimit.Limit{
			ratelimit.TokenBucket(rate, burst), ratelimit.LeakyBucket(rate, burst),
			ratelimit.FixedWindow(rate), ratelimit.SlidingLog(rate), ratelimit.SlidingCounter(rate),
		}[r.IntN(5)]
		nodes := 2 + r.IntN(20)
		clock := new(ratelimittest.Clock)
		share := failover.Share(limit, nodes)
		all := make([]*ratelimit.Keyed[string], nodes)
		for i := range all {
			all[i] = ratelimit.Must(ratelimit.New(share, &ratelimit.Options[string]{Clock: clock}))
		}
		passed := 0
		const windows = 5
		var length time.Duration
		for length < windows*per {
			for _, l := range all {
				for l.Allow("k", 1) {
					passed++
				}
			}
			step := time.Duration(1 + r.Int64N(int64(per/2)))
			clock.Advance(step)
			length += step
		}
		at := fmt.Sprintf("%v for %d: %v", limit, nodes, share)
		if limit.Burst > 0 {
			require.Less(t, float64(passed), float64(burst+nodes)+float64(units)*float64(length)/float64(per), at)
		} else { // a node may also meet parts of two other windows
			most := (windows + 2) * (units + nodes)
			require.Less(t, passed, most, at)
		}
	}
}
