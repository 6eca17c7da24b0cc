package chain_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAChainChargesAllLimitersOrNone(t *testing.T) {
	clock := new(ratelimittest.Clock)
	first := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(10), 5).Named("first"))
	last := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(8)).Named("last"))
	chain := chainOf(t, first, last)

	d, err := chain.Take(t.Context(), "ann", 4)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: chain.Describe().Limits[0], Remaining: 1, ResetAfter: time.Minute}, d)
	clock.Advance(s)
	d, err = chain.Take(t.Context(), "ann", 5)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: chain.Describe().Limits[1], Remaining: 4, RetryAfter: 59 * s, ResetAfter: 59 * s}, d)
	assert.Equal(t, 5, remaining(t, first, "ann"), "given back")
	assert.Equal(t, 4, remaining(t, last, "ann"))
	assert.False(t, chain.Allow("ann", 5))
	assert.True(t, chain.Allow("ann", 4))
	assert.Equal(t, 1, remaining(t, first, "ann"))
}

// If a later limiter denies a call, the first one gets its charge back. Other
// calls' open reservations then give back as much as without the denied call.
func TestACallThatAChainDeniesLeavesNoTraceInRefunds(t *testing.T) {
	t.Parallel()
	for name, deny := range map[string]func(*chain.Limiter[string], context.Context) error{
		"Take": func(c *chain.Limiter[string], ctx context.Context) error {
			d, err := c.Take(ctx, "ann", 150)
			assert.False(t, d.Allowed)
			return err
		},
		"Reserve": func(c *chain.Limiter[string], ctx context.Context) error {
			r, err := c.Reserve(ctx, "ann", 150, 0)
			assert.False(t, r.Allowed)
			return err
		},
		"Wait": func(c *chain.Limiter[string], ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.ErrorIs(t, c.Wait(ctx, "ann", 150), context.DeadlineExceeded)
			return nil
		},
	} {
		clock := new(ratelimittest.Clock)
		first := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerMinute(60), 1000))
		second := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerMinute(1), 500))
		chain := chainOf(t, first, second)
		require.True(t, first.Allow("ann", 400))
		r, err := chain.Reserve(t.Context(), "ann", 400, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, ratelimit.Adjust(t.Context(), ratelimit.Limiter[string](second), "ann", 50))
		for range 6 {
			clock.Advance(s)
			require.NoError(t, deny(chain, t.Context()))
		}
		require.NoError(t, r.Settle(0))
		assert.Equal(t, 606, remaining(t, first, "ann"), name)
	}
}

func TestTheFirstDenialEndsAChain(t *testing.T) {
	clock := new(ratelimittest.Clock)
	first := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("first"))
	requested := allows(ratelimit.Decision{Remaining: 9})
	never := &engine{Answer: func() (ratelimit.Decision, error) { panic("asked") }}
	require.True(t, first.Allow("ann", 1))
	d, err := chainOf(t, requested, first, never).Take(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: first.Describe().Limits[0], RetryAfter: s, ResetAfter: s, NextAfter: s}, d)
	assert.Equal(t, []int{0}, requested.Settled)
	r, err := chainOf(t, requested, first, never).Reserve(t.Context(), "ann", 1, 0)
	require.NoError(t, err)
	assert.Equal(t, d, r.Decision)
	assert.Equal(t, []int{0, 0}, requested.Settled)
	require.NoError(t, r.Settle(3), "there is nothing to settle")
}

func TestAnErrorEndsAChainAndGivesBack(t *testing.T) {
	clock := new(ratelimittest.Clock)
	first := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	chain := chainOf(t, first, fails(ratelimit.ErrUnavailable))
	d, err := chain.Take(t.Context(), "ann", 2)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.False(t, d.Allowed)
	r, err := chain.Reserve(t.Context(), "ann", 2, 0)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.False(t, r.Allowed)
	require.ErrorIs(t, chain.Wait(t.Context(), "ann", 2), ratelimit.ErrUnavailable)
	assert.False(t, chain.Allow("ann", 2))
	assert.Equal(t, 3, remaining(t, first, "ann"))
	_, err = chain.Take(t.Context(), "ann", -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
	_, err = chain.Take(t.Context(), "ann", 4)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
}

func TestAnAllowedDecisionWithAnErrorIsNoSuccess(t *testing.T) {
	odd := errors.New("odd")
	confused := &engine{Answer: func() (ratelimit.Decision, error) { return ratelimit.Decision{Allowed: true}, odd }}
	for _, chain := range []*chain.Limiter[string]{chainOf(t, confused), chainOf(t, confused, confused)} {
		d, err := chain.Take(t.Context(), "ann", 1)
		require.ErrorIs(t, err, odd)
		assert.False(t, d.Allowed)
	}
	assert.Equal(t, []int{0}, confused.Settled, "what was reserved is given back")
}

func TestAFailedRefundIsReportedBesideAnErrorOfTheSameKind(t *testing.T) {
	lost := errors.New("connection lost")
	first := allows(ratelimit.Decision{})
	first.SettleFail = lost
	chain := chainOf(t, first, fails(ratelimit.ErrUnavailable))
	_, err := chain.Reserve(t.Context(), "ann", 1, 0)
	require.ErrorIs(t, err, lost)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.EqualError(t, chain.Stats().LastFailure, "chain: limiter 0 could not settle: connection lost")
}

func TestAChainIsSettledInAllLimiters(t *testing.T) {
	clock := new(ratelimittest.Clock)
	limit := ratelimit.TokenBucket(ratelimit.PerHour(1), 9)
	a, b, c := onClock(t, clock, limit), allows(ratelimit.Decision{Remaining: 9}), onClock(t, clock, limit)
	chain := chainOf(t, a, b, c)
	r, err := chain.Reserve(t.Context(), "ann", 5, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, r.Settle(2))
	require.NoError(t, r.Settle(9), "only the first counts")
	assert.Equal(t, 7, remaining(t, a, "ann"))
	assert.Equal(t, []int{2}, b.Settled)
	assert.Equal(t, 7, remaining(t, c, "ann"))

	b.SettleFail = errors.New("lost")
	r, err = chain.Reserve(t.Context(), "ann", 2, 0)
	require.NoError(t, err)
	require.ErrorIs(t, r.Cancel(), b.SettleFail)
	assert.Equal(t, 7, remaining(t, a, "ann"), "the others are settled all the same")
	assert.Equal(t, 7, remaining(t, c, "ann"))
}

func TestACostOfZeroThroughAChainSettlesInEach(t *testing.T) {
	l := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(9)))
	r, err := chainOf(t, l, l).Reserve(t.Context(), "ann", 0, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, r.Settle(3))
	assert.Equal(t, 3, remaining(t, l, "ann"))
}

func TestAChainsDecisionIsMergedAsAStacks(t *testing.T) {
	a := ratelimit.Decision{Limit: ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("a"), Remaining: 2, ResetAfter: 3 * s, Delay: 2 * s}
	b := ratelimit.Decision{Limit: ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("b"), Remaining: 1, ResetAfter: 2 * s, Degraded: true}
	want := ratelimit.Decision{Allowed: true, Limit: b.Limit, Remaining: 1, ResetAfter: 3 * s, Delay: 2 * s, Degraded: true}
	for _, chain := range []*chain.Limiter[string]{chainOf(t, allows(a), allows(b)), chainOf(t, allows(b), allows(a))} {
		d, err := chain.Take(t.Context(), "ann", 1)
		require.NoError(t, err)
		assert.Equal(t, want, d)
	}
	b.Remaining, b.ResetAfter = 2, 4*s
	d, _ := chainOf(t, allows(a), allows(b)).Take(t.Context(), "ann", 1)
	assert.Equal(t, "b", d.Limit.Name, "both leave 2, and this one for longer")
	b.ResetAfter = 3 * s
	d, _ = chainOf(t, allows(a), allows(b)).Take(t.Context(), "ann", 1)
	assert.Equal(t, "a", d.Limit.Name, "alike, and first")
}

func TestADeniedChainReturnsTheFiguresOfItsLimiters(t *testing.T) {
	for _, test := range []struct{ first, last, cost, want int }{
		{first: 1, last: 4, cost: 5, want: 4},
		{first: 1, last: 9, cost: 5, want: 6},
		{first: math.MaxInt, last: math.MaxInt, cost: math.MaxInt, want: math.MaxInt},
	} {
		denies := &engine{Answer: func() (ratelimit.Decision, error) {
			return ratelimit.Decision{Remaining: test.last, RetryAfter: s, Delay: s, Degraded: test.cost == 5}, nil
		}}
		d, err := chainOf(t, allows(ratelimit.Decision{Remaining: test.first, ResetAfter: 2 * s, Degraded: test.cost != 5}), denies).
			Take(t.Context(), "ann", test.cost)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Remaining: test.want, RetryAfter: s, ResetAfter: 2 * s, Degraded: true}, d)
	}
}

func TestALimiterThatPanicsLosesNothingOfTheOthers(t *testing.T) {
	l := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	bomb := &engine{Answer: func() (ratelimit.Decision, error) { panic("bomb") }}
	require.PanicsWithValue(t, "bomb", func() { chainOf(t, l, bomb).Allow("ann", 2) })
	require.PanicsWithValue(t, "bomb", func() { _, _ = chainOf(t, l, bomb).Reserve(t.Context(), "ann", 2, 0) })
	assert.Equal(t, 3, remaining(t, l, "ann"))
}

// unsettling returns reservations that cannot be settled.
type unsettling struct{ *engine }

func (unsettling) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	return ratelimit.NewReservation(ratelimit.Decision{Allowed: true}, func(int) error { panic("bomb") }), nil
}

func TestAPanicOfASettlementKeepsNoneFromTheOthers(t *testing.T) {
	l := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	bomb, denies := unsettling{}, &engine{Answer: func() (d ratelimit.Decision, err error) { return d, nil }}
	require.PanicsWithValue(t, "bomb", func() { chainOf(t, l, bomb, denies).Allow("ann", 2) })
	assert.Equal(t, 3, remaining(t, l, "ann"))
	res, err := chainOf(t, l, bomb).Reserve(t.Context(), "ann", 3, 0)
	require.NoError(t, err)
	require.PanicsWithValue(t, "bomb", func() { _ = res.Settle(1) })
	assert.Equal(t, 2, remaining(t, l, "ann"))
}

func TestNewRefusesLimitersThatCannotDecide(t *testing.T) {
	l := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	_, err := chain.New[string]()
	require.EqualError(t, err, "chain: New needs at least one limiter")
	_, err = chain.New[string](l, nil)
	require.EqualError(t, err, "chain: New: limiters[1] is nil")
	var none *ratelimit.Keyed[string]
	_, err = chain.New[string](none)
	require.EqualError(t, err, "chain: New: limiters[0] is nil")
}

func TestTheZeroLimiterNamesTheFault(t *testing.T) {
	var zero chain.Limiter[string]
	const want = "chain: this Limiter is nil or zero: make one with New"
	assert.PanicsWithError(t, want, func() { zero.Allow("k", 1) })
	assert.PanicsWithError(t, want, func() { _, _ = zero.Take(t.Context(), "k", 1) })
	assert.PanicsWithError(t, want, func() { _, _ = zero.Reserve(t.Context(), "k", 1, 0) })
	assert.PanicsWithError(t, want, func() { _ = zero.Wait(t.Context(), "k", 1) })
	assert.PanicsWithError(t, want, func() { zero.Describe() })
	assert.PanicsWithError(t, want, func() { zero.Stats() })
	assert.PanicsWithError(t, want, func() { (*chain.Limiter[string])(nil).Allow("k", 1) })
}

func TestAChainDescribesTheLimitsOfAll(t *testing.T) {
	a := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("a"))
	b := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("b"))
	chain := chainOf(t, chainOf(t, a, b), allows(ratelimit.Decision{}), b)
	assert.Equal(t, []ratelimit.Limit{a.Describe().Limits[0], b.Describe().Limits[0], {}, b.Describe().Limits[0]}, chain.Describe().Limits)
}

func TestAChainWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil))
		remote := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerSecond(5), 3), nil))
		chain := chainOf(t, local, remote)
		start := time.Now()
		require.NoError(t, chain.Wait(t.Context(), "ann", 1))
		assert.Zero(t, time.Since(start))
		require.NoError(t, ratelimit.Wait[string](t.Context(), chain, "ann", 1))
		assert.Equal(t, 200*ms, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		require.ErrorIs(t, chain.Wait(ctx, "ann", 1), context.DeadlineExceeded)
		assert.Equal(t, 200*ms, time.Since(start), "at once")
		d, err := local.Peek(context.Background(), "ann", 1)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "nothing is left of the wait that failed")
		var none context.Context
		require.NoError(t, chain.Wait(none, "bob", 1))
	})
}

// A limiter that books ahead denies a cost for 10 s, and could book it for 60 s from
// now. After 10 s, with 40 s left, it would deny again, and so on until the deadline.
func TestAWaitThatIsTooLateForABookingFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain := chainOf(t, ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(1), 1), nil)))
		start := time.Now()
		require.True(t, chain.Allow("ann", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		require.ErrorIs(t, chain.Wait(ctx, "ann", 1), context.DeadlineExceeded)
		assert.Zero(t, time.Since(start))
	})
}

// A chain with one limiter keeps every promise of the limiter alone. So
// does a chain with the same limiter behind another that never denies.
func TestAChainKeepsThePromisesOfItsLimiters(t *testing.T) {
	clock := new(ratelimittest.Clock)
	for name, generous := range map[string]bool{"alone": false, "behind another": true} {
		t.Run(name, func(t *testing.T) {
			ratelimittest.Run(t, ratelimittest.Config{Clock: clock, Seed: 7, Histories: 6, Want: []string{"Calendar"},
				New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
					l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
					if err != nil {
						return nil, err
					}
					if !generous {
						return chain.New[string](l)
					}
					guard := ratelimit.Must(ratelimit.New(ratelimit.Unlimited(), &ratelimit.Options[string]{Clock: clock}))
					return chain.New[string](guard, l)
				}})
		})
	}
}

// A chain makes one allocation. Its limiters make a Reservation each, except the last one, and an error that no caller reads.
func TestAllowOfAChainAllocatesLittle(t *testing.T) {
	chain, err := chain.New[string](
		ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: time.Nanosecond}, 5), nil)),
		ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: time.Nanosecond}, 3), nil)))
	require.NoError(t, err)
	for cost, most := range map[int]float64{1: 2, 4: 3, 6: 3, -1: 3} {
		assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { chain.Allow("k", cost) }), most, "cost %d", cost)
	}
}

func TestAChainSupportsTheOptionalMethodsOfItsLimiters(t *testing.T) {
	clock := new(ratelimittest.Clock)
	first := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("first"))
	last := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(8)).Named("last"))
	var l ratelimit.Limiter[string] = ratelimit.Map(chainOf(t, chainOf(t, first), last), func(k string) (string, error) {
		if k == "skip" {
			return "", ratelimit.SkipLayer
		}
		return k, nil
	})
	ctx := t.Context()
	require.True(t, l.Allow("k", 4))
	for cost := range 6 {
		want := ratelimit.Decision{Allowed: cost <= 1, Limit: first.Describe().Limits[0], Remaining: 1, ResetAfter: time.Minute}
		if !want.Allowed {
			want.RetryAfter, want.ResetAfter = s*time.Duration(cost-1), 4*s
		}
		d, err := ratelimit.Peek(ctx, l, "k", cost)
		require.NoError(t, err)
		assert.Equal(t, want, d, "cost %d", cost)
	}
	_, err := ratelimit.Peek(ctx, l, "k", 6)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, 1, remaining(t, first, "k"), "nothing was spent")

	require.NoError(t, ratelimit.Adjust(ctx, l, "k", -2))
	assert.Equal(t, 3, remaining(t, first, "k"))
	assert.Equal(t, 6, remaining(t, last, "k"))
	require.NoError(t, ratelimit.Reset(ctx, l, "k"))
	assert.Equal(t, 5, remaining(t, first, "k"))
	assert.Equal(t, 8, remaining(t, last, "k"))

	require.NoError(t, ratelimit.Reset(ctx, l, "skip"))
	require.NoError(t, ratelimit.Adjust(ctx, l, "skip", 1))
	d, err := ratelimit.Peek(ctx, l, "skip", 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
}

// adjustable is an engine with an Adjust that takes a context.
type adjustable struct {
	*engine
	err error
	n   int
}

func (a *adjustable) Adjust(_ context.Context, _ string, delta int) error {
	a.n += delta
	return a.err
}

func TestAChainAdjustsAllAndReturnsTheErrors(t *testing.T) {
	a, b := &adjustable{engine: allows(ratelimit.Decision{}), err: ratelimit.ErrUnavailable}, &adjustable{engine: allows(ratelimit.Decision{})}
	err := chainOf(t, a, b).Adjust(t.Context(), "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.ErrorContains(t, err, "chain: limiter 0")
	assert.Equal(t, []int{3, 3}, []int{a.n, b.n})
}

// The test compares a denial with the state after it. By then, the
// limiters before the denying one have got their charges back.
func TestADenialReturnsTheTimeUntilTheBudgetsAreFull(t *testing.T) {
	limits := []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerMinute(6), 12), ratelimit.FixedWindow(ratelimit.PerMinute(15)), ratelimit.SlidingLog(ratelimit.PerMinute(14)),
		ratelimit.SlidingCounter(ratelimit.PerMinute(13)), ratelimit.TokenBucket(ratelimit.PerSecond(1), 5), ratelimit.FixedWindow(ratelimit.PerHour(300)),
	}
	denials := 0
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		clock := new(ratelimittest.Clock)
		var links []*ratelimit.Keyed[string]
		var reservers []ratelimit.Reserver[string]
		for i, at := range random.Perm(len(limits))[:2+random.IntN(2)] {
			links = append(links, onClock(t, clock, limits[at].Named(string(rune('a'+i)))))
			reservers = append(reservers, links[i])
		}
		chained := chainOf(t, reservers...)
		for range 60 {
			clock.Advance(time.Duration(random.Int64N(int64(4 * s))))
			cost := random.IntN(6)
			looked, err := chained.Peek(t.Context(), "ann", cost)
			require.NoError(t, err)
			got, err := chained.Take(t.Context(), "ann", cost)
			require.NoError(t, err)
			if got.Allowed {
				continue
			}
			denials++
			assert.Equal(t, looked, got, "Peek")
			var want time.Duration
			for _, l := range links { // the limiters behind the denying one were not called
				d, err := l.Peek(context.Background(), "ann", 0)
				require.NoError(t, err)
				want = max(want, d.ResetAfter)
				if l.Describe().Limits[0].Name == got.Limit.Name {
					break
				}
			}
			assert.Equal(t, want, got.ResetAfter, "%v, cost %d", chained.Describe().Limits, cost)
		}
	}
	assert.Greater(t, denials, 1000)
}

// Without a Peek, a denial's ResetAfter still counts the returned charge. It may be too long, but is never too short.
func TestALimiterWithoutPeekKeepsItsDecision(t *testing.T) {
	clock := new(ratelimittest.Clock)
	last := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
	require.True(t, last.Allow("ann", 1))
	d, err := chainOf(t, allows(ratelimit.Decision{Remaining: 9, ResetAfter: time.Hour}), last).Take(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, time.Hour, d.ResetAfter)
}

func TestCallsThatOverlapUseTheWholeLimitOfAChain(t *testing.T) {
	clock := new(ratelimittest.Clock)
	wide := ratelimit.TokenBucket(ratelimit.PerMinute(1_000_000), 1_000_000)
	c := chainOf(t, onClock(t, clock, wide), onClock(t, clock, model.TokensPerMinute))
	assert.InDelta(t, 100_000, model.Overlap(t, clock, c, "tenant"), 5000)
}
