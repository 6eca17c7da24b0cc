package fair_test

import (
	"context"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestTenantAloneHasFourFifthsOfTheBurstAndTheWholeRate(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 100), &fair.Options[int]{Clock: clock})
	spent := 0
	for l.Allow(1, 1) {
		spent++
	}
	require.Equal(t, 80, spent)
	require.True(t, l.Allow(2, 5), "the rest is for whoever comes")
	clock.Advance(time.Minute)
	require.True(t, l.Allow(1, 100), "nothing is owed")
}

func TestRetryAfterIsExactForATenantAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(testsize.Seed(1), 5))
	for range 2000 {
		clock := new(ratelimittest.Clock)
		burst := 1 + r.IntN(1000)
		limit := ratelimit.TokenBucket(ratelimit.Per(1+r.IntN(1000), time.Duration(1+r.Int64N(1e10))), burst)
		l := newFair(t, limit, &fair.Options[int]{Clock: clock})
		for range 5 {
			cost := 1 + r.IntN(burst)
			d := take(t, l, 1, cost)
			if d.Allowed {
				continue
			}
			clock.Advance(d.RetryAfter - 1)
			early, err := l.Peek(context.Background(), 1, cost)
			require.NoError(t, err)
			clock.Advance(1)
			require.True(t, take(t, l, 1, cost).Allowed, "%v, cost %d", limit, cost)
			require.False(t, early.Allowed, "%v, cost %d", limit, cost)
		}
		d := take(t, l, 1, 0)
		clock.Advance(d.ResetAfter)
		d = take(t, l, 1, 0)
		require.Zero(t, d.ResetAfter)
		require.Equal(t, burst, d.Remaining)
	}
}

// Remaining is right even if a tenant was denied a cost and returns after RetryAfter.
func TestRemainingIsTheLargestCostThatPasses(t *testing.T) {
	r := rand.New(rand.NewPCG(testsize.Seed(1), 6))
	for range 50 {
		clock := new(ratelimittest.Clock)
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1+r.IntN(5)), 1+r.IntN(40))
		l := newFair(t, limit, &fair.Options[int]{Clock: clock, Weight: func(key int) int { return 1 + key }})
		for range 100 {
			key := r.IntN(3)
			answer, err := l.Peek(context.Background(), key, 1)
			require.NoError(t, err)
			for cost := max(1, answer.Remaining); cost <= min(answer.Remaining+1, limit.Burst); cost++ {
				d, err := l.Peek(context.Background(), key, cost)
				require.NoError(t, err)
				require.Equal(t, cost <= answer.Remaining, d.Allowed, "%v, cost %d", limit, cost)
			}
			if d := take(t, l, key, 1+r.IntN(limit.Burst)); r.IntN(2) == 0 {
				clock.Advance(d.RetryAfter)
			} else {
				clock.Advance(time.Duration(r.Int64N(2e9)))
			}
		}
	}
}

func TestChangedWeightHoldsFromThenOnAndKeepsTheDebt(t *testing.T) {
	clock := new(ratelimittest.Clock)
	weight := 1
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), &fair.Options[int]{
		Clock: clock, Weight: func(key int) int { return map[int]int{1: weight}[key] },
	})
	both := func() (spent [2]float64) {
		for range 20_000 {
			clock.Advance(time.Millisecond)
			for key := range 2 {
				if l.Allow(key, 1) {
					spent[key]++
				}
			}
		}
		return spent
	}
	both()
	spent := both()
	require.InDelta(t, 1, spent[1]/spent[0], 0.01)
	weight = 3
	both()
	spent = both()
	require.InDelta(t, 3, spent[1]/spent[0], 0.02)
}

// Like Take, Peek uses the current weight.
func TestPeekKnowsAChangedWeight(t *testing.T) {
	weight := 1
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000), &fair.Options[int]{
		Clock: new(ratelimittest.Clock), Weight: func(key int) int { return map[int]int{1: weight, 2: 5}[key] },
	})
	require.True(t, l.Allow(1, 100))
	require.True(t, l.Allow(2, 100))
	for _, weight = range []int{9, 1, 4} {
		peeked, err := l.Peek(context.Background(), 1, 700)
		require.NoError(t, err)
		require.Equal(t, take(t, l, 1, 0).Remaining, peeked.Remaining)
	}
}

func TestOverrunIsOwedByTheTenantAndByTheTotal(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, perSecond(10, 100), &fair.Options[int]{Clock: clock})
	r, err := l.Reserve(t.Context(), 1, 10, time.Hour)
	require.NoError(t, err)
	require.Zero(t, r.Delay)
	require.NoError(t, r.Settle(150))
	d := take(t, l, 2, 1)
	require.False(t, d.Allowed)
	require.Equal(t, 100*time.Millisecond, d.RetryAfter, "for all, the burst is empty and no more")
	clock.Advance(d.RetryAfter)
	require.False(t, l.Allow(1, 1), "it owes all, and 50 besides")
	require.True(t, l.Allow(2, 1))
	before, err := l.Peek(t.Context(), 1, 1)
	require.NoError(t, err)
	require.NoError(t, r.Settle(0))
	require.NoError(t, r.Settle(1000))
	after, err := l.Peek(t.Context(), 1, 1)
	require.NoError(t, err)
	require.Equal(t, before, after, "once is enough")
}

func TestAnOverrunOfAnySizeIsItsTenantsUntilReset(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, perSecond(10, 100), &fair.Options[int]{Clock: clock})
	r, err := l.Reserve(t.Context(), 3, 0, 0)
	require.NoError(t, err)
	require.NoError(t, r.Settle(math.MaxInt))
	spent := 0
	for range 1000 {
		clock.Advance(100 * time.Millisecond)
		require.False(t, l.Allow(3, 1), "its overrun is its own")
		if l.Allow(2, 1) {
			spent++
		}
	}
	require.Greater(t, spent, 890)
	l.Reset(t.Context(), 3)
	clock.Advance(time.Second)
	require.True(t, l.Allow(3, 1))
}

func TestFullTableDropsTenantsWithTheLeastDebt(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), &fair.Options[int]{Clock: clock, MaxKeys: 3})
	require.True(t, l.Allow(1, 300))
	require.True(t, l.Allow(2, 10))
	require.True(t, l.Allow(3, 20))
	require.True(t, l.Allow(4, 30))
	require.Equal(t, fair.Stats{Tracked: 3, InDebt: 3, Evicted: 1}, l.Stats())
	d, err := l.Peek(context.Background(), 1, 600)
	require.NoError(t, err)
	require.False(t, d.Allowed, "who owes most is still known")
	other, err := l.Peek(context.Background(), 9, 600)
	require.NoError(t, err)
	require.True(t, other.Allowed)
	require.Equal(t, 360*time.Millisecond, d.ResetAfter, "the total is exact")

	clock.Advance(time.Minute)
	require.Equal(t, fair.Stats{Tracked: 3, Evicted: 1}, l.Stats())
	clock.Advance(time.Minute)
	require.True(t, l.Allow(5, 1))
	require.Equal(t, fair.Stats{Tracked: 2, InDebt: 1, Evicted: 1}, l.Stats(), "who was idle for long is dropped as others come")
}

func TestMillionTenantsThatComeOnceTakeNoMoreThanMaxKeys(t *testing.T) {
	testsize.Extra(t)
	testsize.Sequential(t)
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1<<30), &fair.Options[int]{MaxKeys: 1000})
	for key := range 1_000_000 {
		l.Allow(key, 1)
	}
	require.Equal(t, 1000, l.Stats().Tracked)

	clock := new(ratelimittest.Clock)
	l = newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 2000), &fair.Options[int]{MaxKeys: 1000, Clock: clock})
	require.True(t, l.Allow(-1, 2000))
	for key := range 1_000_000 { // each is denied; some get a place
		l.Allow(key, 1000)
		clock.Advance(time.Microsecond)
		if key%1000 == 0 {
			require.LessOrEqual(t, l.Stats().Tracked, 1000)
			require.LessOrEqual(t, l.Stats().InDebt, 10, "few of them count")
		}
	}
}

func TestKnownTenantIsDecidedWithoutAllocating(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	l, err := fair.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1000), 100), nil)
	require.NoError(t, err)
	l.Allow("tenant", 1)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		l.Allow("tenant", 1)
		_, _ = l.Take(context.Background(), "tenant", 1)
	}))
}

func TestClockThatStepsBackGrantsNothing(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), &fair.Options[int]{Clock: clock})
	clock.Advance(time.Second)
	require.True(t, l.Allow(1, 8))
	clock.Advance(-time.Hour)
	d := take(t, l, 1, 8)
	require.False(t, d.Allowed)
	clock.Advance(d.RetryAfter)
	require.True(t, l.Allow(1, 8))
}

func TestFiguresThatAreWrongAreNamed(t *testing.T) {
	bucket := ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)
	for _, c := range []struct {
		limit ratelimit.Limit
		opts  fair.Options[string]
		want  string
	}{
		{limit: ratelimit.Limit{}, want: "zero Limit"},
		{limit: ratelimit.SlidingLog(ratelimit.PerSecond(1)), want: "sliding-log, want a token bucket"},
		{limit: bucket, opts: fair.Options[string]{MaxKeys: -1}, want: "MaxKeys is -1"},
		{limit: bucket, opts: fair.Options[string]{MaxWaiting: -2}, want: "MaxWaiting is -2"},
		{limit: bucket, opts: fair.Options[string]{Clock: (*ratelimittest.Clock)(nil)}, want: "Clock holds a nil"},
	} {
		_, err := fair.New(c.limit, &c.opts)
		require.ErrorContains(t, err, c.want)
	}
	if large := 1 << (bits.UintSize - 24); bits.UintSize == 64 {
		_, err := fair.New[int](ratelimit.TokenBucket(ratelimit.PerSecond(large), large+1), nil)
		require.ErrorContains(t, err, "Burst is 1099511627777, want at most 2^40")
	}
}

func TestACallThatIsWrongIsAnErrorAndLeavesNothing(t *testing.T) {
	bucket := ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)
	l, err := fair.New[any](bucket, nil)
	require.NoError(t, err)
	for _, c := range []struct {
		key  any
		cost int
		want error
		text string
	}{
		{"secret", 11, ratelimit.ErrExceedsLimit, "cost 11 is above 10"},
		{"a", -1, ratelimit.ErrNegativeCost, ""},
		{[]int{1}, 1, ratelimit.ErrInvalidKey, ""},
		{math.NaN(), 1, ratelimit.ErrInvalidKey, ""},
	} {
		_, err = l.Take(context.Background(), c.key, c.cost)
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.text)
		require.NotContains(t, err.Error(), "secret")
	}
	require.ErrorIs(t, l.SetLimit(ratelimit.Unlimited()), ratelimit.ErrInvalidLimit)
	require.Zero(t, l.Stats().Tracked)
	require.Equal(t, []ratelimit.Limit{bucket}, l.Describe().Limits)
	require.False(t, l.Describe().BooksAhead)
}

func TestCallsThatOverlapUseTheWholeLimit(t *testing.T) {
	testsize.Sequential(t)
	clock := new(ratelimittest.Clock)
	l := newFair(t, model.TokensPerMinute, &fair.Options[int]{Clock: clock})
	require.InDelta(t, 100_000, model.Overlap(t, clock, l, 1), 5000)
	for _, tenants := range []int{1, 5, 20} {
		l := newFair(t, model.TokensPerMinute, &fair.Options[int]{Clock: clock})
		var keys []int
		for i := range tenants {
			keys = append(keys, i)
		}
		used, over := model.Hour(t, clock, l, keys, 0)
		require.InDelta(t, 100_000, used, 5000, "%d tenants", tenants)
		require.Zero(t, over, "%d tenants", tenants)
	}
}
