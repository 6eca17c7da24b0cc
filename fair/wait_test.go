package fair_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestWaitersShareByWeightBesidePollers(t *testing.T) {
	for _, c := range []struct {
		burst int
		p99   time.Duration // the longest wait of the modest tenant
	}{{1000, time.Millisecond}, {100, 40 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			const polling, waiting, modest = 10, 20, 100
			l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), c.burst), &fair.Options[int]{
				Weight: func(key int) int { return 1 + key/waiting%2 }, // tenants from waiting to 2·waiting weigh 2
			})
			ctx, stop := context.WithCancel(t.Context())
			var counts atomic.Bool
			var spent [128]atomic.Int64
			var all sync.WaitGroup
			seed := testsize.Seed(1)
			run := func(f func(r *rand.Rand)) {
				seed++
				r := rand.New(rand.NewPCG(seed, 3))
				all.Go(func() {
					for ctx.Err() == nil {
						f(r)
					}
				})
			}
			count := func(key int) {
				if counts.Load() {
					spent[key].Add(1)
				}
			}
			for i := range waiting {
				key := i/2 + i%2*waiting // half of the tenants weigh 2
				for range 5 {
					run(func(*rand.Rand) {
						if l.Wait(ctx, key, 1) == nil {
							count(key)
						}
					})
				}
			}
			for i := range polling {
				run(func(r *rand.Rand) {
					if l.Allow(waiting/2+i, 1) {
						count(waiting/2 + i)
					}
					time.Sleep(time.Duration((0.5 + r.Float64()) * 10e6))
				})
			}
			var waits []time.Duration
			run(func(r *rand.Rand) {
				time.Sleep(time.Duration(r.ExpFloat64() * 1e9 / 12))
				began := time.Now()
				if l.Wait(ctx, modest-modest%waiting, 1) == nil && counts.Load() {
					waits = append(waits, time.Since(began))
				}
			})
			time.Sleep(40 * time.Second) // the first tenant had 800 units at once, and owes them for 32 s
			counts.Store(true)
			time.Sleep(60 * time.Second)
			counts.Store(false)
			stop()
			all.Wait()
			var kinds [3]float64
			total := len(waits)
			for key := range spent {
				total += int(spent[key].Load())
				switch {
				case key < waiting/2:
					kinds[0] += float64(spent[key].Load()) / 600
				case key < waiting:
					kinds[1] += float64(spent[key].Load()) / 600
				default:
					kinds[2] += float64(spent[key].Load()) / 600
				}
			}
			late := 0
			for _, w := range waits {
				if w > c.p99 {
					late++
				}
			}
			t.Logf("burst %d: %.1f a second for a waiting tenant, %.1f for a polling one, %.1f for one that weighs 2, %.1f in all; %d of %d modest ones late",
				c.burst, kinds[0], kinds[1], kinds[2], float64(total)/60, late, len(waits))
			require.InDelta(t, 2, kinds[2]/kinds[0], 0.06)
			if c.burst == 1000 { // a small burst leaves no room for tenants that do not wait
				require.InDelta(t, 1, kinds[1]/kinds[0], 0.06)
			}
			require.InDelta(t, 60_000, total, 100)
			require.LessOrEqual(t, late, max(1, len(waits)/100))
		})
	}
}

// A tenant that uses half its share hardly waits, although 50 tenants always have callers in line.
func TestModestTenantHardlyWaitsBesideFiftyGreedyOnes(t *testing.T) {
	for _, c := range []struct {
		burst int
		p99   time.Duration
	}{{1000, 51 * time.Millisecond}, {100, 3 * 51 * time.Millisecond}} { // its share is one unit per 51 ms, and its calls come at random
		synctest.Test(t, func(t *testing.T) {
			const greedy = 50
			l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), c.burst), nil)
			ctx, stop := context.WithCancel(t.Context())
			var counts atomic.Bool
			var served [greedy]int
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range greedy {
				all.Go(func() {
					for l.Wait(ctx, i, 1) == nil {
						mu.Lock()
						if counts.Load() {
							served[i]++
						}
						mu.Unlock()
					}
				})
			}
			time.Sleep(45 * time.Second) // the first tenant had most of the burst, and owes it
			counts.Store(true)
			r := rand.New(rand.NewPCG(testsize.Seed(1), 4))
			var waits []time.Duration
			for began := time.Now(); time.Since(began) < 60*time.Second; {
				time.Sleep(time.Duration(r.ExpFloat64() * float64(2*(greedy+1)) * 1e6))
				requested := time.Now()
				require.NoError(t, l.Wait(t.Context(), greedy, 1))
				waits = append(waits, time.Since(requested))
			}
			counts.Store(false)
			stop()
			all.Wait()
			slices.Sort(waits)
			p99 := waits[len(waits)*99/100]
			t.Logf("burst %d: P99 %v of %d, greedy ones %d to %d", c.burst, p99, len(waits), slices.Min(served[:]), slices.Max(served[:]))
			require.LessOrEqual(t, p99, c.p99)
			require.Less(t, slices.Max(served[:])-slices.Min(served[:]), slices.Max(served[:])/25)
		})
	}
}

func TestOneTenantsWaitersAreServedInTheOrderOfTheirCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 5), nil)
		require.True(t, l.Allow(1, 4))
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		began := time.Now()
		for i := range 5 {
			all.Go(func() {
				if l.Wait(t.Context(), 1, 1) == nil {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
				}
			})
			synctest.Wait()
		}
		require.False(t, l.Allow(1, 1), "a tenant with callers in line is denied")
		all.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4}, order)
		require.Equal(t, 420*time.Millisecond, time.Since(began), "alone it has four fifths of the burst, and then the whole rate")
	})
}

func TestLargeCostGetsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 100), nil)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for key := range 20 {
			all.Go(func() {
				for ctx.Err() == nil {
					l.Allow(key, 1)
					time.Sleep(time.Millisecond + time.Duration(key)*time.Microsecond)
				}
			})
		}
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, l.Wait(ctx, 100, 100))
		require.Less(t, time.Since(began), 3*time.Second, "its share is 100 units in 2.1 s")
		stop()
		all.Wait()
	})
}

func TestWaiterThatGivesUpLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10), &fair.Options[int]{MaxWaiting: 3})
		for l.Allow(1, 1) {
		}
		before := l.Stats()
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for key := range 3 {
			all.Go(func() {
				if err := l.Wait(ctx, key, 10); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, 3, l.Stats().Waiting)
		require.ErrorIs(t, l.Wait(t.Context(), 4, 5), ratelimit.ErrLimited)
		d, err := l.Peek(context.Background(), 1, 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		stop()
		all.Wait()
		after := l.Stats()
		require.Zero(t, after.Waiting)
		require.Equal(t, before.InDebt, after.InDebt)
		require.True(t, l.Allow(7, 1), "room is not kept for those who have left")
	})
}

func TestWaitFailsAtOnceIfItsDeadlineComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10), nil)
		require.True(t, l.Allow(1, 8))
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		require.ErrorIs(t, l.Wait(ctx, 2, 5), context.DeadlineExceeded)
		require.Equal(t, began, time.Now())
		require.NoError(t, l.Wait(t.Context(), 2, 0))
		require.ErrorIs(t, l.Wait(t.Context(), 2, 11), ratelimit.ErrExceedsLimit)
		require.ErrorIs(t, l.Wait(t.Context(), 2, -1), ratelimit.ErrNegativeCost)
	})
}

func TestChangedLimitHurriesWaitersAndRefusesCostsAboveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 10), nil)
		require.True(t, l.Allow(1, 8))
		var small, large error
		var all sync.WaitGroup
		all.Go(func() { large = l.Wait(t.Context(), 2, 9) })
		synctest.Wait()
		all.Go(func() { small = l.Wait(t.Context(), 3, 5) })
		synctest.Wait()
		began := time.Now()
		require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(10), 8)))
		all.Wait()
		require.ErrorIs(t, large, ratelimit.ErrExceedsLimit)
		require.NoError(t, small)
		require.Equal(t, 500*time.Millisecond, time.Since(began), "8 are owed, and 5 have room at 3")
	})
}

func TestSettledReservationLetsAWaiterIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 10), nil)
		r, err := l.Reserve(t.Context(), 1, 8, 0)
		require.NoError(t, err)
		var all sync.WaitGroup
		all.Go(func() { require.NoError(t, l.Wait(t.Context(), 2, 5)) })
		synctest.Wait()
		began := time.Now()
		require.NoError(t, r.Settle(1))
		all.Wait()
		require.Equal(t, began, time.Now())
	})
}

// A tenant's debt is kept while one of its callers waits. When the waiter is served,
// an overrun is not forgotten. A changed weight changes the share, not the debt.
func TestDebtOfATenantThatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		settle, weight int
		served         time.Duration // the time until there is room for its 260
		paid           time.Duration // from then until the first of the two debts is paid
	}{
		"as it was":        {settle: 150, weight: 1, served: time.Second, paid: 81 * time.Second},         // 405 beside 595
		"an overrun":       {settle: 350, weight: 1, served: 21 * time.Second, paid: 99 * time.Second},    // 505 beside 495
		"less than it was": {settle: 140, weight: 1, served: time.Nanosecond, paid: 80 * time.Second},     // 400 beside 600
		"a larger weight":  {settle: 150, weight: 4, served: time.Second, paid: 50250 * time.Millisecond}, // 402 beside 598
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var weight atomic.Int64
				l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 1000), &fair.Options[int]{
					Weight: func(key int) int { return int(weight.Load()) * (2 - key) },
				})
				weight.Store(1)
				require.True(t, l.Allow(2, 600))
				r, err := l.Reserve(t.Context(), 1, 150, 0)
				require.NoError(t, err)
				began := time.Now()
				var all sync.WaitGroup
				all.Go(func() { require.NoError(t, l.Wait(t.Context(), 1, 260)) })
				synctest.Wait()
				require.Equal(t, 1, l.Stats().Waiting)
				weight.Store(int64(c.weight))
				_, err = l.Peek(context.Background(), 1, 0)
				require.NoError(t, err)
				require.NoError(t, r.Settle(c.settle))
				all.Wait()
				require.InDelta(t, c.served, time.Since(began), 1)
				time.Sleep(c.paid - time.Microsecond)
				require.Equal(t, 2, l.Stats().InDebt)
				time.Sleep(2 * time.Microsecond)
				require.Equal(t, 1, l.Stats().InDebt)
			})
		})
	}
}

// A thousand callers come and go. They are granted no more than the limit, and no waiter is left behind.
func TestThousandWaitersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFair(t, ratelimit.TokenBucket(ratelimit.PerSecond(2000), 500), &fair.Options[int]{MaxWaiting: 800, MaxKeys: 50})
		var spent atomic.Int64
		began := time.Now()
		var all sync.WaitGroup
		for i := range 1000 {
			r := rand.New(rand.NewPCG(testsize.Seed(uint64(i)), 5))
			all.Go(func() {
				for range 30 {
					cost := 1 + r.IntN(20)
					ctx, stop := context.WithTimeout(t.Context(), time.Duration(r.Int64N(3e9)))
					switch r.IntN(4) {
					case 0:
						if l.Allow(i%97, cost) {
							spent.Add(int64(cost))
						}
					case 1:
						if res, _ := l.Reserve(ctx, i%97, cost, 0); res.Allowed {
							time.Sleep(time.Duration(r.Int64N(1e7)))
							_ = res.Settle(cost + r.IntN(3))
							spent.Add(int64(cost))
						}
					default:
						if l.Wait(ctx, i%97, cost) == nil {
							spent.Add(int64(cost))
						}
					}
					stop()
					time.Sleep(time.Duration(r.Int64N(1e8)))
				}
			})
		}
		all.Wait()
		require.Zero(t, l.Stats().Waiting)
		require.LessOrEqual(t, spent.Load(), 500+2000*int64(time.Since(began))/int64(time.Second))
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().InDebt)
		require.True(t, l.Allow(1, 500))
	})
}

// A waiter is due earlier after another tenant's weight falls, and after another tenant joins.
func TestAWaitEndsWhenOthersMakeItDue(t *testing.T) {
	for name, c := range map[string]struct {
		burst, first, cost int      // the heavy tenant spends first, and the light one waits for cost
		before, after      []string // tenants that call before Wait, and while it waits
		weight             int      // the heavy tenant's weight while the light one waits
	}{
		"a weight falls": {burst: 100, first: 60, cost: 30, after: []string{"heavy"}, weight: 1},
		"tenants join":   {burst: 1000, first: 500, cost: 3, before: []string{"c", "d", "e"}, after: []string{"f", "g"}, weight: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var heavy atomic.Int64
				heavy.Store(1000)
				l, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), c.burst), &fair.Options[string]{
					Clock: new(ratelimittest.Clock), Weight: func(key string) int { return max(1, map[string]int{"heavy": int(heavy.Load())}[key]) },
				})
				require.NoError(t, err)
				for _, tenant := range c.before {
					l.Allow(tenant, 1)
				}
				require.True(t, l.Allow("heavy", c.first))
				served := make(chan error, 1)
				go func() { served <- l.Wait(t.Context(), "light", c.cost) }()
				synctest.Wait()
				require.Empty(t, served)
				heavy.Store(int64(c.weight))
				for _, tenant := range c.after {
					l.Allow(tenant, 1)
				}
				synctest.Wait()
				require.Len(t, served, 1)
				require.NoError(t, <-served)
			})
		})
	}
}

// A waiter is overtaken by another one. It still sleeps no longer than until
// its own turn, even if the state changed while the other one was first.
func TestAWaiterThatWasOvertakenComesInTime(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *fair.Limiter[int], r *ratelimit.Reservation) error
		takes  time.Duration
	}{
		"another limit": {func(l *fair.Limiter[int], _ *ratelimit.Reservation) error {
			return l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1), 20))
		}, 17 * time.Second}, // 37 of 20 are spent
		// 21 of 20 are spent
		"a cancelled reservation": {func(_ *fair.Limiter[int], r *ratelimit.Reservation) error { return r.Cancel() }, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFair(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 20), nil)
				r, err := l.Reserve(t.Context(), 1, 16, 0)
				require.NoError(t, err)
				var first, second error
				var all sync.WaitGroup
				all.Go(func() { first = l.Wait(t.Context(), 2, 12) })
				synctest.Wait()
				all.Go(func() { second = l.Wait(t.Context(), 3, 9) })
				synctest.Wait()
				require.NoError(t, c.change(l, r))
				began := time.Now()
				all.Wait()
				require.NoError(t, first)
				require.NoError(t, second)
				require.Equal(t, c.takes, time.Since(began))
			})
		})
	}
}
