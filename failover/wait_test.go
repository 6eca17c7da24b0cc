package failover_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/wait"
)

// waiters call Wait for cost 1, one after the other, and record the order of service.
type waiters struct {
	mu     sync.Mutex // guards the fields below
	served []int
	errs   []error
	at     []time.Time
	wg     sync.WaitGroup
}

func (w *waiters) come(ctx context.Context, n int, l ratelimit.Reserver[string]) {
	for range n {
		w.mu.Lock()
		i := len(w.errs)
		w.errs, w.at = append(w.errs, nil), append(w.at, time.Time{})
		w.mu.Unlock()
		w.wg.Go(func() {
			err := ratelimit.Wait(ctx, l, "k", 1)
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.errs[i], w.at[i] = err, time.Now(); err == nil {
				w.served = append(w.served, i)
			}
		})
		time.Sleep(time.Millisecond)
	}
}

// count returns how many calls are served.
func (w *waiters) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.served)
}

// inOrder waits for all calls. The test fails unless they were served in the order of their arrival.
func (w *waiters) inOrder(t *testing.T) {
	t.Helper()
	w.wg.Wait()
	require.True(t, slices.IsSortedFunc(w.at, time.Time.Compare), "%v", w.served) // two may be served at one instant
	for i, err := range w.errs {
		require.NoError(t, err, i)
	}
}

var onePerSecond, hundredPerSecond = ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), ratelimit.TokenBucket(ratelimit.PerSecond(100), 1)

// The primary books nothing ahead. Still, each of 300 callers finds its place in the primary's line.
func TestCallersBeforeAStackWaitInOrderAndFollowARaise(t *testing.T) {
	for name, behind := range map[string]func(l ratelimit.Reserver[string]) ratelimit.Reserver[string]{
		"stack": func(l ratelimit.Reserver[string]) ratelimit.Reserver[string] {
			key := func(k string) (string, error) { return k, nil }
			return ratelimit.Must(ratelimit.All(ratelimit.By(ample(), key), ratelimit.By(l, key)))
		},
		"chain": func(l ratelimit.Reserver[string]) ratelimit.Reserver[string] {
			return ratelimit.Must(chain.New(ample(), l))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := newLocal(t, onePerSecond)
				l := over(t, behind(inner), failover.DenyAll[string](), failover.Options{})
				var w waiters
				w.come(t.Context(), 300, l)
				time.Sleep(10 * time.Second)
				require.InDelta(t, 11, w.count(), 1)
				require.NoError(t, inner.SetLimit(hundredPerSecond))
				began := time.Now()
				w.inOrder(t)
				require.Less(t, time.Since(began), 4*time.Second)
				require.Equal(t, uint64(300), l.Stats().Primary)
			})
		})
	}
}

// A store fails while 40 callers wait, and recovers. The callers change over to the limiter that decides.
func TestCallersInLineFollowTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports, localReports atomic.Int64
		counted := func(limit ratelimit.Limit, n *atomic.Int64) *ratelimit.Keyed[string] {
			return ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{OnDecision: func(ratelimit.Event[string]) { n.Add(1) }}))
		}
		s, local := newStore(t, wide), counted(ratelimit.TokenBucket(ratelimit.PerMinute(6), 1), &localReports)
		s.Keyed = counted(onePerSecond, &reports)
		l := over(t, s, local, failover.Options{})
		var w waiters
		w.come(t.Context(), 40, l)
		time.Sleep(10 * time.Second)
		require.InDelta(t, 11, w.count(), 1)
		require.Zero(t, local.Stats().Waiting)

		before := w.count()
		s.fail(down)
		synctest.Wait()
		require.Equal(t, failover.StateOpen, l.Stats().State)
		require.Equal(t, 40-before-1, local.Stats().Waiting, "all but the one that the local burst serves")
		time.Sleep(25 * time.Second)
		require.Equal(t, before+3, w.count(), "by the local rate")
		require.Equal(t, uint64(3), l.Stats().Instead)
		require.Equal(t, int64(3), localReports.Load())

		s.fail(nil)
		require.False(t, take(t, l, 0).Degraded, "the probe")
		synctest.Wait()
		require.Zero(t, local.Stats().Waiting)
		require.InDelta(t, 40-before-3, s.Stats().Waiting, 1, "the debt may be charged after the first of them")
		w.wg.Wait()
		require.Equal(t, 40, w.count())
		time.Sleep(2 * time.Second)
		require.Equal(t, uint64(40-3+1), l.Stats().Primary)
		require.Equal(t, int64(3), localReports.Load(), "calls are reported where they end")
		require.Equal(t, int64(40-3+1), reports.Load())
		require.Equal(t, int64(1), s.repaid.Load(), "two count no more")
	})
}

func TestAForcedBreakerMovesCallersInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, local := newLocal(t, onePerSecond), newLocal(t, onePerSecond)
		l := over(t, s, local, failover.Options{})
		var w waiters
		w.come(t.Context(), 20, l)
		for range 3 {
			l.Force(failover.StateOpen)
			synctest.Wait()
			require.Zero(t, s.Stats().Waiting)
			require.Positive(t, local.Stats().Waiting)
			time.Sleep(2 * time.Second)
			l.Force(failover.StateClosed)
			synctest.Wait()
			require.Zero(t, local.Stats().Waiting)
			require.Positive(t, s.Stats().Waiting)
			time.Sleep(2 * time.Second)
		}
		w.inOrder(t)
	})
}

// New calls leave a silent primary after the timeout. Calls in line before the failure leave when the breaker opens.
func TestCallersLeaveAPrimaryThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, local := newStore(t, onePerSecond), newLocal(t, hundredPerSecond)
		l := over(t, s, local, failover.Options{})
		var w waiters
		w.come(t.Context(), 3, l)
		s.fail(func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		for i := range 5 {
			require.Equal(t, failover.StateClosed, l.Stats().State)
			time.Sleep(time.Second)
			began := time.Now()
			assert.NoError(t, l.Wait(t.Context(), "k", 1))
			if i < 4 {
				require.Equal(t, 50*time.Millisecond, time.Since(began))
			}
		}
		require.Equal(t, failover.StateOpen, l.Stats().State)
		began := time.Now()
		w.inOrder(t)
		require.Less(t, time.Since(began), 100*time.Millisecond)
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		require.Less(t, time.Since(began), 200*time.Millisecond, "an open breaker costs no timeout")
	})
}

// Many calls at once need one Peek, and none if the primary has answered lately.
func TestAWaitPeeksAtASilentPrimaryOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.DenyAll[string](), failover.Options{})
		s.fail(takes(10 * time.Millisecond))
		time.Sleep(time.Second)
		before := s.calls.Load()
		storm(100, func() { assert.NoError(t, l.Wait(t.Context(), "k", 1)) })
		require.Equal(t, before+101, s.calls.Load())
		assert.NoError(t, l.Wait(t.Context(), "k", 1))
		require.Equal(t, before+102, s.calls.Load())
		time.Sleep(51 * time.Millisecond)
		assert.NoError(t, l.Wait(t.Context(), "k", 1))
		require.Equal(t, before+104, s.calls.Load())
	})
}

func TestAWaitThatCannotBeServedFails(t *testing.T) {
	for name, c := range map[string]struct {
		limit    ratelimit.Limit
		fail     func(context.Context) error
		instead  ratelimit.Reserver[string]
		cost     int
		deadline time.Duration
		want     error
		after    time.Duration
	}{
		"the deadline is too early":              {onePerSecond, nil, failover.AllowAll[string](), 1, 500 * time.Millisecond, context.DeadlineExceeded, 0},
		"above the burst":                        {onePerSecond, nil, failover.AllowAll[string](), 2, 0, ratelimit.ErrExceedsLimit, 0},
		"a negative cost":                        {onePerSecond, nil, failover.AllowAll[string](), -1, 0, ratelimit.ErrNegativeCost, 0},
		"no deadline, and the stand-in denies":   {onePerSecond, down, failover.DenyAll[string](), 1, 0, ratelimit.ErrLimited, 0},
		"the stand-in denies until the deadline": {onePerSecond, down, failover.DenyAll[string](), 1, 2500 * time.Millisecond, context.DeadlineExceeded, 2 * time.Second},
		"too late for the stand-in":              {onePerSecond, down, newLocal(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1)), 1, time.Minute, context.DeadlineExceeded, 0},
		"blocked":                                {ratelimit.Blocked(), nil, failover.AllowAll[string](), 1, time.Minute, ratelimit.ErrBlocked, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, c.limit)
				l := over(t, s, c.instead, failover.Options{})
				if c.limit == onePerSecond {
					require.True(t, s.Keyed.Allow("k", 1))
					c.instead.Allow("k", 1)
				}
				s.fail(c.fail)
				ctx := t.Context()
				if c.deadline > 0 {
					bounded, cancel := context.WithTimeout(ctx, c.deadline)
					defer cancel()
					ctx = bounded
				}
				began := time.Now()
				require.ErrorIs(t, l.Wait(ctx, "k", c.cost), c.want)
				require.Equal(t, c.after, time.Since(began))
			})
		})
	}
}

// The stand-in's share is below the cost, so the call waits for the primary.
func TestAWaitAboveTheStandInsBurstWaitsForThePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10))
		l := over(t, s, newLocal(t, onePerSecond), failover.Options{})
		s.fail(down)
		began := time.Now()
		time.AfterFunc(10*time.Second, func() { s.fail(nil) })
		require.NoError(t, l.Wait(t.Context(), "k", 5))
		require.GreaterOrEqual(t, time.Since(began), 10*time.Second)
		require.LessOrEqual(t, time.Since(began), 13*time.Second)
	})
}

// A stand-in without a line lets calls pass. The primary is charged with them afterwards.
func TestThePrimaryIsChargedWithWaitsThatTheStandInAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{})
		s.fail(down)
		for range 7 {
			require.NoError(t, l.Wait(t.Context(), "k", 10))
		}
		require.Equal(t, uint64(7), l.Stats().Instead)
		s.fail(nil)
		time.Sleep(2 * time.Second)
		require.NoError(t, l.Wait(t.Context(), "k", 10))
		time.Sleep(2 * time.Second)
		require.Equal(t, int64(70), s.repaid.Load())
	})
}

// Callers leave while they change over. They leave no charge and no place behind.
func TestCallersThatLeaveBetweenTheLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, local := newStore(t, onePerSecond), newLocal(t, onePerSecond)
		l := over(t, s, local, failover.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var w waiters
		w.come(ctx, 50, l)
		l.Force(failover.StateOpen)
		cancel()
		w.wg.Wait()
		synctest.Wait()
		require.Zero(t, s.Stats().Waiting)
		require.Zero(t, local.Stats().Waiting)
		time.Sleep(time.Second)
		require.True(t, s.Keyed.Allow("k", 1))
	})
}

// Outages come at random, some of them forced, and callers come, wait and leave. Each served call has
// spent its cost in one of the limiters, and all other calls have spent nothing. No call outlasts its deadline.
func TestOutagesForCallersInLine(t *testing.T) {
	for seed := range testsize.Of(8, 200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(uint64(seed)), 1))
			spent, served := map[bool]int{}, 0
			var mu sync.Mutex // guards both
			limiter := func(limit ratelimit.Limit, standIn bool) *ratelimit.Keyed[string] {
				return ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{OnDecision: func(e ratelimit.Event[string]) {
					mu.Lock()
					defer mu.Unlock()
					if e.Spent {
						spent[standIn] += e.Cost
					}
				}}))
			}
			s := newStore(t, wide)
			s.Keyed = limiter(ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), false)
			l := over(t, s, limiter(ratelimit.TokenBucket(ratelimit.PerSecond(5), 5), true), failover.Options{Failures: 1 + rng.IntN(5)})
			began := time.Now()
			ends := began.Add(time.Duration(60+rng.IntN(900)) * time.Second)
			var wg sync.WaitGroup
			for time.Now().Before(ends) {
				switch rng.IntN(7) {
				case 0, 1:
					s.fail(down)
				case 2:
					d := time.Duration(rng.IntN(100)) * time.Millisecond
					s.fail(func(ctx context.Context) error { return wait.Sleep(ctx, d) })
				case 3:
					l.Force(failover.StateOpen)
				default:
					l.Force(failover.StateHalfOpen)
					s.fail(nil)
				}
				for range rng.IntN(60) {
					cost, patience := 1+rng.IntN(3), time.Duration(1+rng.IntN(20_000))*time.Millisecond
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						defer cancel()
						came := time.Now()
						err := l.Wait(ctx, "k", cost)
						assert.LessOrEqual(t, time.Since(came), patience)
						if err != nil {
							assert.ErrorIs(t, err, context.DeadlineExceeded)
							return
						}
						mu.Lock()
						defer mu.Unlock()
						served += cost
					})
					time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
				}
			}
			wg.Wait()
			synctest.Wait()
			require.Equal(t, served, spent[false]+spent[true], seed)
			took := time.Since(began).Seconds()
			require.LessOrEqual(t, float64(spent[false]), 10*took+10)
			require.LessOrEqual(t, float64(spent[true]), 5*took+5)
			require.Positive(t, spent[false])
			require.Positive(t, spent[true])
			require.Zero(t, s.Stats().Waiting)
		})
	}
}

// One slow answer does not keep callers from a healthy primary.
func TestCallersReturnToAPrimaryThatWasSlowOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, local := newStore(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)), newLocal(t, onePerSecond)
		l := over(t, s, local, failover.Options{})
		s.fail(takes(time.Second))
		began := time.Now()
		var w waiters
		w.come(t.Context(), 100, l)
		time.Sleep(60 * time.Millisecond)
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.Equal(t, 99, local.Stats().Waiting)
		s.fail(nil)
		time.Sleep(5 * time.Second)
		require.Zero(t, local.Stats().Waiting)
		w.wg.Wait()
		require.Equal(t, 100, w.count())
		require.Less(t, time.Since(began), 11*time.Second)
	})
}
