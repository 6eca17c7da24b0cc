package fair_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// emptied returns a limiter with a rate of 100 a second. Tenant 0 has spent its burst of 1000.
func emptied(t *testing.T, opts fair.Options[int]) (*fair.Limiter[int], *ratelimittest.Clock) {
	clock := new(ratelimittest.Clock)
	opts.Clock = clock
	l := newFair(t, perSecond(100, 1000), &opts)
	require.True(t, l.Allow(0, 1000))
	return l, clock
}

// obey makes a tenant retry after each RetryAfter until its cost
// passes, and returns how long that took. Tenant 2 polls meanwhile.
func obey(t *testing.T, l *fair.Limiter[int], clock *ratelimittest.Clock, key, cost int, rounded func(time.Duration) time.Duration) time.Duration {
	began := clock.Now()
	for range 10 {
		d := take(t, l, key, cost)
		if d.Allowed {
			return clock.Now() - began
		}
		for back := clock.Now() + rounded(d.RetryAfter); clock.Now() < back; clock.Advance(10 * time.Millisecond) {
			l.Allow(2, 5)
		}
	}
	t.Fatal("it is denied ten times")
	return 0
}

func TestDeniedCallKeepsItsPlaceBesideATenantThatPolls(t *testing.T) {
	for _, rounded := range []func(time.Duration) time.Duration{exactly, wholeSeconds} {
		l, clock := emptied(t, fair.Options[int]{})
		require.Less(t, obey(t, l, clock, 1, 400, rounded), 12*time.Second, "a third of the rate gives it in 12 s")
		before := clock.Now()
		for range 10 {
			obey(t, l, clock, 1, 100, rounded)
		}
		require.Less(t, clock.Now()-before, 30*time.Second, "and then half of the rate")
	}
}

// A call with a smaller cost may use a place. An early call does not lose the place.
func TestPlaceIsCollectedByASmallerCostAndNotLostByAnEarlyCall(t *testing.T) {
	l, clock := emptied(t, fair.Options[int]{})
	for range 10 {
		require.False(t, take(t, l, 1, 200).Allowed)
		clock.Advance(10 * time.Millisecond)
	}
	d := take(t, l, 1, 200)
	clock.Advance(d.RetryAfter)
	require.Equal(t, 200, take(t, l, 1, 0).Remaining)
	for l.Allow(2, 5) { // these calls do not take the room kept for the place
	}
	require.Equal(t, 200, take(t, l, 1, 0).Remaining)
	require.True(t, l.Allow(1, 199))
}

func TestPlaceLapsesAfterItsTime(t *testing.T) {
	l, clock := emptied(t, fair.Options[int]{})
	d := take(t, l, 1, 300)
	clock.Advance(d.RetryAfter + 1499*time.Millisecond)
	require.Equal(t, 2, l.Stats().InDebt)
	clock.Advance(2 * time.Millisecond)
	require.Equal(t, 1, l.Stats().InDebt, "it does not count any more")
}

func TestCostAboveHalfOfTheBurstHasNoPlace(t *testing.T) {
	l, _ := emptied(t, fair.Options[int]{})
	require.False(t, l.Allow(1, 501))
	require.Equal(t, 1, l.Stats().InDebt)
	require.False(t, l.Allow(1, 500))
	require.Equal(t, 2, l.Stats().InDebt)
}

func TestBurstOfOneHasNoPlacesAndStillServesAll(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, perSecond(10, 1), &fair.Options[int]{Clock: clock})
	spent := [2]int{}
	for range 1000 {
		for key := range 2 {
			if l.Allow((key+spent[0])%2, 1) {
				spent[(key+spent[0])%2]++
			}
		}
		clock.Advance(10 * time.Millisecond)
	}
	require.InDelta(t, 100, spent[0]+spent[1], 1)
}

func TestPlacesOfALoweredLimitThatAreTooLargeAreLost(t *testing.T) {
	l, clock := emptied(t, fair.Options[int]{})
	require.False(t, l.Allow(1, 400))
	require.False(t, l.Allow(2, 100))
	require.NoError(t, l.SetLimit(perSecond(100, 500)))
	clock.Advance(30 * time.Second)
	require.True(t, l.Allow(1, 400))
	require.False(t, l.Allow(1, 400))
	clock.Advance(time.Minute)
	require.Zero(t, l.Stats().InDebt)
}

// The tenant's debt is lowered with the total. Otherwise its share of the new rate would pay for the whole old burst.
func TestALoweredLimitBarsATenantNoLongerThanItsShareTakesToRefill(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerMinute(100_000), 100_000), &fair.Options[int]{Clock: clock})
	for l.Allow(1, 1000) {
	}
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerMinute(100), 100)))
	granted := [3]int{}
	for range 100 {
		for range 60 {
			clock.Advance(100 * time.Millisecond)
			for tenant := 2; tenant > 0; tenant-- {
				if l.Allow(tenant, 1) {
					granted[tenant]++
				}
			}
		}
		if granted[1] == 0 {
			require.Less(t, clock.Now(), 2*time.Minute, "half of the rate refills the burst in that time")
		}
	}
	require.InDelta(t, 500, granted[1], 100, "%v", granted)
}

func TestWaiterWithAPlaceIsInLineOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(100, 1000), nil)
		require.True(t, l.Allow(0, 1000))
		require.False(t, l.Allow(1, 300))
		began := time.Now()
		require.NoError(t, l.Wait(t.Context(), 1, 200))
		require.Less(t, time.Since(began), 6*time.Second)
		require.False(t, l.Allow(1, 500), "its place is gone")
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().InDebt)
	})
}

// An overrun may be so large that the upstream cannot have granted
// it. Then it bars only its own tenant, even while that tenant waits.
func TestOverrunOfMillionsBarsItsTenantAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(1000, 1000), nil)
		r, err := l.Reserve(t.Context(), 1, 10, 0)
		require.NoError(t, err)
		require.NoError(t, r.Settle(10_000_000))
		began := time.Now()
		require.NoError(t, l.Wait(t.Context(), 2, 1))
		require.LessOrEqual(t, time.Since(began), time.Millisecond)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var all sync.WaitGroup
		var others atomic.Int64
		for key := 2; key < 4; key++ {
			all.Go(func() {
				for l.Wait(ctx, key, 10) == nil {
					others.Add(10)
				}
			})
		}
		require.ErrorIs(t, l.Wait(ctx, 1, 1), context.DeadlineExceeded)
		all.Wait()
		require.InDelta(t, 60_000, others.Load(), 1100)
	})
}

func TestResetAndANegativeAdjustEndABar(t *testing.T) {
	for name, end := range map[string]func(l *fair.Limiter[int]) error{
		"reset":  func(l *fair.Limiter[int]) error { l.Reset(context.Background(), 1); return nil },
		"adjust": func(l *fair.Limiter[int]) error { return l.Adjust(context.Background(), 1, -1_000_000) },
		"least":  func(l *fair.Limiter[int]) error { return l.Adjust(context.Background(), 1, math.MinInt) },
	} {
		t.Run(name, func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			l := newFair(t, perSecond(100, 1000), &fair.Options[int]{Clock: clock})
			require.True(t, l.Allow(2, 300))
			require.NoError(t, l.Adjust(context.Background(), 1, 1_000_000))
			require.False(t, l.Allow(1, 1))
			require.NoError(t, end(l))
			d := take(t, l, 1, 1)
			require.True(t, d.Allowed, "the total has got back its part too")
			require.Equal(t, 3010*time.Millisecond, d.ResetAfter)
		})
	}
}

func TestAdjustChangesTheTenantAndTheTotal(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, perSecond(100, 1000), &fair.Options[int]{Clock: clock})
	require.NoError(t, l.Adjust(context.Background(), 1, 300))
	require.Equal(t, 3*time.Second, take(t, l, 2, 0).ResetAfter)
	require.NoError(t, l.Adjust(context.Background(), 1, -100))
	require.Equal(t, 2*time.Second, take(t, l, 2, 0).ResetAfter)
	require.NoError(t, l.Adjust(context.Background(), 2, -100), "it owes nothing")
	require.Equal(t, 2*time.Second, take(t, l, 2, 0).ResetAfter)
	require.NoError(t, l.Adjust(context.Background(), 1, 0))
	l.Reset(context.Background(), 1)
	l.Reset(context.Background(), 3)
	require.Zero(t, take(t, l, 2, 0).ResetAfter)
	require.NoError(t, ratelimit.Adjust(t.Context(), ratelimit.Limiter[int](l), 1, 10))
	require.NoError(t, ratelimit.Reset(t.Context(), ratelimit.Limiter[int](l), 1))
}

func TestResetLeavesCallersInLineAndHurriesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(100, 1000), nil)
		require.True(t, l.Allow(1, 1000))
		done := make(chan error, 1)
		go func() { done <- l.Wait(t.Context(), 1, 500) }()
		synctest.Wait()
		began := time.Now()
		l.Reset(context.Background(), 1)
		require.NoError(t, <-done)
		require.Equal(t, began, time.Now())
	})
}

func TestATenantDoesNotFillTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(1, 10), &fair.Options[int]{MaxWaiting: 100})
		require.True(t, l.Allow(0, 10))
		ctx, stop := context.WithCancel(t.Context())
		var refused, served atomic.Int64
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if err := l.Wait(ctx, 1, 1); ctx.Err() == nil && err != nil {
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, 50, l.Stats().Waiting)
		require.EqualValues(t, 150, refused.Load())
		for key := 2; key < 40; key++ {
			all.Go(func() {
				if l.Wait(ctx, key, 1) == nil {
					served.Add(1)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, 88, l.Stats().Waiting, "the others find room")
		stop()
		all.Wait()
		require.Zero(t, l.Stats().Waiting)
	})
}

// When a tenant leaves a full table, the others' shares grow.
func TestEvictionWakesAWaiterThatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := new(ratelimittest.Clock)
		weight := func(key int) int { return map[int]int{1: 1000}[key] }
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000), &fair.Options[int]{Clock: clock, Weight: weight, MaxKeys: 2})
		require.True(t, l.Allow(1, 100))
		done := make(chan error, 1)
		go func() { done <- l.Wait(t.Context(), 2, 400) }()
		synctest.Wait()
		require.Empty(t, done, "beside a tenant of weight 1000")
		require.True(t, l.Allow(3, 1), "it has a place in the table")
		synctest.Wait()
		require.Len(t, done, 1)
		require.NoError(t, <-done)
		require.EqualValues(t, 1, l.Stats().Evicted)
	})
}

func TestDeniedNewTenantEvictsNone(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newFair(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 100), &fair.Options[int]{Clock: clock, MaxKeys: 3})
	for key := range 3 {
		require.True(t, l.Allow(key, 20))
	}
	for key := 3; key < 100; key++ {
		require.False(t, l.Allow(key, 50))
	}
	require.Equal(t, fair.Stats{Tracked: 3, InDebt: 3}, l.Stats())
}

func TestReserveWithADelayWaitsInLineAndSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []ratelimit.Event[int]
		l := newFair(t, perSecond(10, 100), &fair.Options[int]{OnDecision: func(e ratelimit.Event[int]) { events = append(events, e) }})
		require.True(t, l.Allow(1, 100))
		began := time.Now()
		r, err := l.Reserve(t.Context(), 2, 50, 10*time.Second)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Zero(t, r.Delay)
		require.Zero(t, r.RetryAfter)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.NoError(t, r.Settle(10))
		require.Equal(t, 6*time.Second, take(t, l, 3, 0).ResetAfter, "40 are refunded")
		require.True(t, events[1].Spent)
	})
}

func TestReserveWithADelayReturnsAtOnceIfItNeedNotWait(t *testing.T) {
	for name, c := range map[string]struct {
		none    bool // no context, which never ends
		cost    int
		delay   time.Duration
		allowed bool
		err     error
	}{
		"there is no room within the delay": {cost: 90, delay: 4 * time.Second},
		"there is room, and no context":     {none: true, cost: 1, delay: -time.Second, allowed: true},
		"the cost is above the limit":       {cost: 101, delay: time.Second, err: ratelimit.ErrExceedsLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFair(t, perSecond(10, 100), nil)
				require.True(t, l.Allow(1, 60))
				ctx, began := t.Context(), time.Now()
				if c.none {
					ctx = nil
				}
				r, err := l.Reserve(ctx, 3, c.cost, c.delay)
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.allowed, r.Allowed)
				require.Equal(t, began, time.Now())
				if err == nil && !c.allowed {
					require.Greater(t, r.RetryAfter, c.delay)
				}
			})
		})
	}
}

func TestReserveInLineEndsWithItsDelayOrItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(10, 100), nil)
		require.True(t, l.Allow(1, 100))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = l.Wait(ctx, 1, 50) }()
		synctest.Wait()
		began := time.Now()
		r, err := l.Reserve(t.Context(), 1, 40, 6*time.Second) // it waits behind the same tenant's other caller
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, 6*time.Second, time.Since(began))
		require.NoError(t, r.Settle(1000), "nothing was charged")

		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Reserve(soon, 1, 90, time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
		_, err = l.Reserve(soon, 1, 1, time.Hour)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestReserveThatFindsNoRoomInLineIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(1, 10), &fair.Options[int]{MaxWaiting: 1})
		require.True(t, l.Allow(0, 10))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = l.Wait(ctx, 1, 10) }()
		synctest.Wait()
		r, err := l.Reserve(t.Context(), 2, 1, time.Minute)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Positive(t, r.RetryAfter)
	})
}

// One tenant polls with small costs, another obeys RetryAfter, and the others wait in line. All get equal shares.
func TestGatewaysSharesBesideATenantThatPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(1000, 2500), nil)
		ctx, stop := context.WithTimeout(t.Context(), 200*time.Second)
		defer stop()
		var spent [6]atomic.Int64
		var all sync.WaitGroup
		began := time.Now()
		count := func(key, cost int) {
			if time.Since(began) >= 40*time.Second {
				spent[key].Add(int64(cost))
			}
		}
		for key := range 4 {
			all.Go(func() {
				for l.Wait(ctx, key, 500) == nil {
					count(key, 500)
				}
			})
		}
		all.Go(func() {
			for ctx.Err() == nil {
				if l.Allow(4, 1) {
					count(4, 1)
				}
				time.Sleep(time.Millisecond)
			}
		})
		all.Go(func() {
			for ctx.Err() == nil {
				d, _ := l.Take(ctx, 5, 500)
				if d.Allowed {
					count(5, 500)
				} else {
					time.Sleep(wholeSeconds(d.RetryAfter))
				}
			}
		})
		all.Wait()
		for key := range spent {
			require.InDelta(t, 160_000/6, spent[key].Load(), 1000, "tenant %d", key)
		}
	})
}

func TestSmallerCallerIsServedWhenTheFirstQuits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000), nil)
		require.True(t, l.Allow(0, 300))
		ctx, quit := context.WithCancel(t.Context())
		var large, small error
		var all sync.WaitGroup
		all.Go(func() { large = l.Wait(ctx, 1, 900) })
		synctest.Wait()
		all.Go(func() { small = l.Wait(t.Context(), 1, 10) })
		synctest.Wait()
		began := time.Now()
		quit()
		all.Wait()
		require.ErrorIs(t, large, context.Canceled)
		require.NoError(t, small)
		require.Equal(t, began, time.Now())
	})
}

// When the clock jumps ahead, all places lapse and all debts end.
func TestClockThatJumpsAhead(t *testing.T) {
	l, clock := emptied(t, fair.Options[int]{})
	for key := range 20 {
		l.Allow(key, 50)
		l.Allow(key, 50)
	}
	clock.Advance(100 * 365 * 24 * time.Hour)
	require.Equal(t, fair.Stats{Tracked: 20}, l.Stats())
	require.True(t, l.Allow(1, 1000))
	clock.Advance(-200 * 365 * 24 * time.Hour)
	d := take(t, l, 1, 1000)
	require.False(t, d.Allowed)
	clock.Advance(d.RetryAfter)
	require.True(t, l.Allow(1, 1000))
}

// The shared bucket cannot be emptier than empty. So the rest of an overrun is its tenant's own debt.
func TestTheDebtOfATenantIsItsOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, perSecond(100, 100), nil)
		debt := func(tenant int) int {
			d, err := l.Peek(context.Background(), tenant, 1)
			require.NoError(t, err)
			return d.Debt
		}
		r, err := l.Reserve(t.Context(), 1, 10, 0)
		require.NoError(t, err)
		require.NoError(t, r.Settle(400))
		require.Equal(t, 300, debt(1), "100 were in the bucket")
		require.Zero(t, debt(2))
		require.NoError(t, l.Adjust(context.Background(), 1, -50))
		require.Equal(t, 250, debt(1))
		time.Sleep(time.Minute)
		require.Zero(t, debt(1))
	})
}
