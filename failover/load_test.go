package failover_test

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// wide is a limit that no test reaches.
var wide = ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1_000_000)

// takes returns a function that makes a call take d.
func takes(d time.Duration) func(context.Context) error {
	return func(context.Context) error { time.Sleep(d); return nil }
}

// With more load than MaxCalls, callers of a healthy store wait, but no call fails.
func TestLoadIsNotFailure(t *testing.T) {
	for _, calls := range []int{0, 40} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t, wide)
			most := 0
			var mu sync.Mutex
			under := 0
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				under += n
				most = max(most, under)
			}
			s.fail(func(context.Context) error {
				count(1)
				defer count(-1)
				time.Sleep(time.Millisecond)
				return nil
			})
			l := over(t, s, failover.DenyAll[string](), failover.Options{MaxCalls: calls})
			storm(1000, func() {
				for range 8 {
					d, err := l.Take(context.Background(), "k", 1)
					assert.NoError(t, err)
					assert.True(t, d.Allowed && !d.Degraded)
					time.Sleep(20 * time.Millisecond)
				}
			})
			require.EqualValues(t, 8000, l.Stats().Primary)
			require.Zero(t, l.Stats().Instead)
			if calls == 0 {
				calls = 128
			}
			require.Equal(t, calls, most)
		})
	}
}

func TestSettlementsWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.DenyAll[string](), failover.Options{})
		var all []*ratelimit.Reservation
		for range 6000 {
			r, err := l.Reserve(context.Background(), "k", 1, 0)
			require.NoError(t, err)
			all = append(all, r)
		}
		s.fail(takes(time.Millisecond))
		var wg sync.WaitGroup
		for _, r := range all {
			wg.Go(func() { assert.NoError(t, r.Cancel()) })
		}
		wg.Wait()
		require.Equal(t, 1_000_000, remaining(t, s.Keyed))
		require.Zero(t, l.Stats().Unsettled)
	})
}

func TestSettlementsOnAStoreThatHangsEndSoon(t *testing.T) {
	for name, opened := range map[string]bool{"the breaker is open": true, "nobody has noticed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, wide)
				l := over(t, s, failover.DenyAll[string](), failover.Options{})
				var all []*ratelimit.Reservation
				for range 100 {
					r, err := l.Reserve(context.Background(), "k", 1, 0)
					require.NoError(t, err)
					all = append(all, r)
				}
				time.Sleep(2 * time.Second)
				s.fail(takes(time.Minute))
				if opened {
					for range 5 {
						require.True(t, take(t, l, 1).Degraded)
					}
				}
				began := time.Now()
				for _, r := range all[:99] {
					require.ErrorIs(t, r.Cancel(), ratelimit.ErrUnavailable)
				}
				require.LessOrEqual(t, time.Since(began), 250*time.Millisecond)
				require.EqualValues(t, 99, l.Stats().Unsettled)
				require.NotEqual(t, failover.StateClosed, l.Stats().State)

				s.fail(nil)
				time.Sleep(1200*time.Millisecond + 1)
				require.False(t, take(t, l, 1).Degraded)
				require.NoError(t, all[99].Cancel())
				time.Sleep(time.Hour)
			})
		})
	}
}

// A settlement waits for its turn. Its result counts in the breaker's state at the
// call to the primary. The breaker may have opened and closed since the caller came.
func TestASettlementCountsInTheStateInWhichItsCallBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, MaxCalls: 1, Timeout: 10 * time.Second})
		first, err := l.Reserve(context.Background(), "k", 1, 0)
		require.NoError(t, err)
		second, err := l.Reserve(context.Background(), "k", 1, 0)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		s.fail(takes(3 * time.Second))
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, first.Cancel()) })
		synctest.Wait()
		wg.Go(func() { assert.ErrorIs(t, second.Cancel(), ratelimit.ErrUnavailable) })
		synctest.Wait()
		s.fail(down)
		require.True(t, take(t, l, 1).Degraded)
		require.Equal(t, failover.StateOpen, l.Stats().State)
		s.fail(nil)
		time.Sleep(1200*time.Millisecond + 1)
		require.False(t, take(t, l, 1).Degraded)
		require.Equal(t, failover.StateClosed, l.Stats().State)
		s.fail(down)
		wg.Wait()
		require.Equal(t, failover.StateOpen, l.Stats().State)
	})
}

// A settlement waits for its turn. If the breaker opens meanwhile, it does not call the store.
func TestASettlementThatWaitsHeedsABreakerThatOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, MaxCalls: 1, Timeout: 10 * time.Second, OpenFor: time.Hour})
		var all []*ratelimit.Reservation
		for range 5 {
			r, err := l.Reserve(context.Background(), "k", 1, 0)
			require.NoError(t, err)
			all = append(all, r)
		}
		time.Sleep(time.Minute)
		before := s.calls.Load()
		s.fail(func(context.Context) error { time.Sleep(time.Second); return errDown })
		began := time.Now()
		var wg sync.WaitGroup
		for _, r := range all {
			wg.Go(func() { assert.ErrorIs(t, r.Cancel(), ratelimit.ErrUnavailable) })
		}
		wg.Wait()
		require.Equal(t, time.Second, time.Since(began))
		require.EqualValues(t, before+1, s.calls.Load(), "the store is asked once")
		require.Equal(t, failover.StateOpen, l.Stats().State)
		require.EqualValues(t, 1, l.Stats().Unavailable)
		require.EqualValues(t, 5, l.Stats().Unsettled)
	})
}

func TestTooManySettlementsAtOnceFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.DenyAll[string](), failover.Options{MaxCalls: 1})
		var all []*ratelimit.Reservation
		for range 100 {
			r, err := l.Reserve(context.Background(), "k", 1, 0)
			require.NoError(t, err)
			all = append(all, r)
		}
		s.fail(takes(40 * time.Millisecond))
		began := time.Now()
		var atOnce atomic.Int64
		var wg sync.WaitGroup
		for _, r := range all {
			wg.Go(func() {
				if err := r.Cancel(); time.Since(began) == 0 {
					assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
					atOnce.Add(1)
				}
			})
		}
		synctest.Wait()
		require.Equal(t, 64, l.Stats().Settling)
		wg.Wait()
		require.EqualValues(t, 100-1-64, atOnce.Load())
		require.Zero(t, l.Stats().Settling)
		time.Sleep(time.Minute)
	})
}

// A call has its full Timeout from the beginning of its turn, and goes on after its caller has left.
func TestACallThatHasWaitedForItsTurnHasItsFullTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 1, Failures: 1})
		s.fail(takes(40 * time.Millisecond))
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { assert.False(t, take(t, l, 1).Degraded) })
		synctest.Wait()
		wg.Go(func() {
			assert.True(t, take(t, l, 1).Degraded)
			assert.Equal(t, 50*time.Millisecond, time.Since(began))
		})
		wg.Wait()
		time.Sleep(time.Second)
		require.Equal(t, 9_998, remaining(t, s.Keyed), "it was made, and took no longer than Timeout")
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.Zero(t, l.Stats().Timeouts)
	})
}

// A caller without a turn shows nothing about the primary.
func TestWaitingForATurnThatDoesNotComeIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 1, Failures: 1, Timeout: 10 * time.Millisecond})
		s.fail(takes(9 * time.Millisecond))
		storm(1000, func() { take(t, l, 1) })
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.EqualValues(t, 999, l.Stats().Busy)
		time.Sleep(time.Second)
	})
}

func TestCallersThatWaitForATurnAreAnsweredWhenTheBreakerOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 2, Failures: 2, Timeout: time.Second})
		s.fail(func(context.Context) error { time.Sleep(100 * time.Millisecond); return errDown })
		began := time.Now()
		storm(50, func() {
			require.True(t, take(t, l, 1).Degraded)
			require.LessOrEqual(t, time.Since(began), 200*time.Millisecond)
		})
		require.Equal(t, failover.StateOpen, l.Stats().State)
		// The first failing call frees its turn. Another call may get the turn before the failure counts.
		require.LessOrEqual(t, s.calls.Load(), int64(3))
	})
}

// A hung call holds the only turn. When an operator forces the
// breaker open, the callers waiting for a turn are answered at once.
func TestCallersThatWaitForATurnAreAnsweredWhenAnOperatorForcesItOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 1, Timeout: time.Second})
		s.fail(takes(time.Minute))
		began := time.Now()
		time.AfterFunc(10*time.Millisecond, func() { l.Force(failover.StateOpen) })
		var hung sync.WaitGroup
		hung.Go(func() { take(t, l, 1) })
		synctest.Wait()
		storm(10, func() { take(t, l, 1) })
		require.Equal(t, 10*time.Millisecond, time.Since(began))
		hung.Wait()
		time.Sleep(time.Hour)
	})
}

// Callers with deadlines shorter than Timeout are answered at their deadlines. Their calls are judged all the same.
func TestCallersWithShortDeadlinesAreAnsweredAndOpenTheBreaker(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"the primary heeds its context":   hang,
		"the primary ignores its context": takes(time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, shared)
				l := over(t, s, newLocal(t, wide), failover.Options{})
				s.fail(fail)
				for i := range 1000 {
					ctx, cancel := context.WithTimeout(context.Background(), 40*time.Millisecond)
					began := time.Now()
					var d ratelimit.Decision
					var err error
					if i%2 == 0 {
						d, err = l.Take(ctx, "k", 1)
					} else {
						var r *ratelimit.Reservation
						r, err = l.Reserve(ctx, "k", 1, 0)
						d = r.Decision
					}
					cancel()
					require.NoError(t, err)
					require.True(t, d.Degraded && d.Allowed)
					require.LessOrEqual(t, time.Since(began), 40*time.Millisecond)
					time.Sleep(10 * time.Millisecond)
				}
				st := l.Stats()
				require.NotEqual(t, failover.StateClosed, st.State)
				require.EqualValues(t, 1000, st.Instead)
				require.Less(t, st.Deadlines, uint64(20), "the breaker saves the others the time")
				require.NotZero(t, st.Timeouts)
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestAPauseOfAHealthyStoreDoesNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.DenyAll[string](), failover.Options{})
		began := time.Now()
		s.fail(func(context.Context) error {
			if into := time.Since(began) % (10 * time.Second); into >= 5*time.Second && into < 5080*time.Millisecond {
				time.Sleep(5080*time.Millisecond - into)
			}
			return nil
		})
		var wg sync.WaitGroup
		for range 60 * 200 {
			wg.Go(func() { take(t, l, 1) })
			time.Sleep(5 * time.Millisecond)
		}
		wg.Wait()
		st := l.Stats()
		require.Zero(t, st.Opened)
		require.LessOrEqual(t, st.Instead, uint64(6*7), "those that began in the first 30 ms of a pause")
		require.NotZero(t, st.Instead)
	})
}

func TestAPrimaryWithoutTimeoutIsCalledUnderTheCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, newLocal(t, local), failover.Options{Timeout: -1, Failures: math.MaxInt})
		s.fail(hang)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		d, err := l.Take(ctx, "k", 1)
		require.NoError(t, err)
		require.True(t, d.Degraded, "the deadline has passed, and it can still be answered")
		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		_, err = l.Take(ctx, "k", 1)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A change of state is reported at once, even if it was caused by a call without a waiting caller.
func TestAChangeIsReportedWithoutAnotherDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		reported := make(chan failover.State, 1)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, OnStateChange: func(_, to failover.State) { reported <- to }})
		s.fail(takes(time.Minute))
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, err := l.Take(ctx, "k", 1)
		require.NoError(t, err)
		time.Sleep(49 * time.Millisecond)
		synctest.Wait()
		require.Len(t, reported, 1)
		require.Equal(t, failover.StateOpen, <-reported)
		time.Sleep(time.Hour)
	})
}

// The call and its caller both end at the deadline, in either order. The change of state is reported either way.
func TestAChangeIsReportedWhicheverCallComesFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	synctest.Test(t, func(t *testing.T) {
		for range 6000 {
			var reported atomic.Int64
			s := newStore(t, wide)
			s.fail(func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, OnStateChange: func(_, _ failover.State) { reported.Add(1) }})
			require.True(t, take(t, l, 1).Degraded)
			synctest.Wait()
			require.EqualValues(t, 1, reported.Load())
		}
	})
}

func TestALateReservationIsCancelledWithinItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 3, Failures: math.MaxInt})
		var under, most atomic.Int64
		s.fail(func(context.Context) error {
			most.Store(max(most.Load(), under.Add(1)))
			defer under.Add(-1)
			time.Sleep(time.Second)
			return nil
		})
		for range 20 {
			storm(10, func() {
				r, err := l.Reserve(context.Background(), "k", 1, 0)
				require.NoError(t, err)
				require.True(t, r.Degraded)
			})
		}
		time.Sleep(time.Minute)
		require.EqualValues(t, 3, most.Load())
		require.Equal(t, 1_000_000, remaining(t, s.Keyed))
	})
}

// An answer arrives at the very instant when its caller leaves. It is returned to the caller or taken back.
func TestAnAnswerAtTheLastInstantIsGivenOrTakenBack(t *testing.T) {
	const span = 10 * time.Millisecond
	for name, row := range map[string]struct {
		timeout, own time.Duration
		cancelled    bool
	}{
		"the caller's deadline":   {time.Second, span, false},
		"Timeout":                 {span, time.Hour, false},
		"the caller is cancelled": {time.Second, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, shared)
				l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1_000_000, Timeout: row.timeout})
				given := 0
				for range 200 {
					ctx, cancel := context.WithTimeout(context.Background(), row.own)
					s.fail(func(context.Context) error {
						time.Sleep(span)
						if row.cancelled {
							cancel()
						}
						return nil
					})
					r, err := l.Reserve(ctx, "k", 1, 0)
					if err != nil {
						require.ErrorIs(t, err, context.Canceled)
					} else if require.True(t, r.Allowed); !r.Degraded {
						given++
					}
					cancel()
				}
				time.Sleep(time.Minute)
				require.Equal(t, 10_000-given, remaining(t, s.Keyed))
			})
		})
	}
}

// A settlement may succeed without a call to the store. So its success shows nothing about the store.
func TestSettlementsThatSucceedDoNotKeepTheBreakerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 3})
		var all []*ratelimit.Reservation
		for range 50 {
			r, err := l.Reserve(context.Background(), "k", 2, 0)
			require.NoError(t, err)
			all = append(all, r)
		}
		time.Sleep(5 * time.Second)
		for _, r := range all {
			require.NoError(t, r.Settle(1))
		}
		s.fail(down)
		for range 3 {
			require.Equal(t, failover.StateClosed, l.Stats().State)
			require.True(t, take(t, l, 1).Degraded)
		}
		require.Equal(t, failover.StateOpen, l.Stats().State)
	})
}

// While the breaker is not closed and the last settlement has failed, settlements
// do not call the store, even if a probe is due or hung settlements hold all turns.
func TestASettlementIsRefusedAtOnceUntilAProbeHasSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, MaxCalls: 1, Timeout: 10 * time.Second})
		var all []*ratelimit.Reservation
		for range 4 {
			r, err := l.Reserve(context.Background(), "k", 1, 0)
			require.NoError(t, err)
			all = append(all, r)
		}
		time.Sleep(time.Minute)
		before := s.calls.Load()
		refused := func(r *ratelimit.Reservation) {
			began := time.Now()
			require.ErrorIs(t, r.Cancel(), ratelimit.ErrUnavailable)
			require.Zero(t, time.Since(began))
			require.Equal(t, before+1, s.calls.Load())
		}
		s.fail(takes(time.Hour))
		require.ErrorIs(t, all[0].Cancel(), ratelimit.ErrUnavailable)
		require.Equal(t, failover.StateOpen, l.Stats().State)
		refused(all[1])
		time.Sleep(1200*time.Millisecond + 1)
		require.Equal(t, failover.StateHalfOpen, l.Stats().State)
		refused(all[2])
		s.fail(nil)
		time.Sleep(time.Hour)
		require.False(t, take(t, l, 1).Degraded)
		require.NoError(t, all[3].Cancel())
	})
}
