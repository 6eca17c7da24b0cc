package failover_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	overlap "github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/ratelimittest"
)

var (
	silent = slog.New(slog.DiscardHandler)

	// shared and local regain nothing while a test runs.
	shared = ratelimit.TokenBucket(ratelimit.PerDay(1), 10_000)
	local  = ratelimit.TokenBucket(ratelimit.PerDay(1), 100)

	errDown = fmt.Errorf("dial: connection refused: %w", ratelimit.ErrUnavailable)
)

func down(context.Context) error { return errDown }

func TestNewNamesTheInvalidOption(t *testing.T) {
	s := newStore(t, shared)
	for _, row := range []struct {
		name             string
		primary, instead ratelimit.Reserver[string]
		opts             *failover.Options
		want             string
	}{
		{"no primary", nil, s, nil, "failover: New: primary is nil"},
		{"a nil pointer", (*ratelimit.Keyed[string])(nil), s, nil, "failover: New: primary is nil"},
		{"no stand-in", s, nil, nil, "failover: New: instead is nil"},
		{"negative Failures", s, s, &failover.Options{Failures: -1}, "failover: Options.Failures is -1, want 0 for the default, or more"},
		{"negative MaxCalls", s, s, &failover.Options{MaxCalls: -1}, "failover: Options.MaxCalls is -1, want 0 for the default, or more"},
		{"negative OpenFor", s, s, &failover.Options{OpenFor: -1}, "failover: Options.OpenFor is -1ns, want 0 for the default, or more"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := failover.New(row.primary, row.instead, row.opts)
			require.EqualError(t, err, row.want)
		})
	}
}

func TestWithoutFailuresThePrimaryDecides(t *testing.T) {
	s := newStore(t, shared)
	l := over(t, s, newLocal(t, local), failover.Options{Timeout: time.Minute})
	alone := newLocal(t, shared)
	for _, cost := range []int{1, 9, 0, 5000, 5000, -1, 10_001} {
		want, wantErr := alone.Take(context.Background(), "k", cost)
		got, err := l.Take(context.Background(), "k", cost)
		require.Equal(t, wantErr, err)
		want.ResetAfter, got.ResetAfter = 0, 0 // both depend on real time
		want.RetryAfter, got.RetryAfter = want.RetryAfter.Round(time.Second), got.RetryAfter.Round(time.Second)
		require.Equal(t, want, got)
	}
	require.Equal(t, failover.Stats{Primary: 7}, l.Stats())
	require.Equal(t, failover.StateClosed, l.Stats().State)
	require.Equal(t, []ratelimit.Limit{shared}, l.Describe().Limits)
}

// A failover books ahead if one of its limiters does. Stacks do not book ahead.
func TestItBooksAheadAsItsLimitersDo(t *testing.T) {
	keyed := newLocal(t, local)
	stack := ratelimit.Must(ratelimit.All(ratelimit.By(keyed, func(key string) (string, error) { return key, nil })))
	for _, c := range []struct {
		primary, instead ratelimit.Reserver[string]
		want             bool
	}{{keyed, keyed, true}, {keyed, stack, true}, {stack, keyed, true}, {stack, stack, false}} {
		require.Equal(t, c.want, ratelimit.Must(failover.New(c.primary, c.instead, nil)).Describe().BooksAhead)
	}
}

func TestAHealthyFailoverKeepsTheWholeContract(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"on a goroutine": 10 * time.Second, "on the caller's": -1} {
		t.Run(name, func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			ratelimittest.Run(t, ratelimittest.Config{
				Clock:     clock,
				Histories: 3,
				Want:      []string{"Calendar"},
				New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
					primary, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
					if err != nil {
						return nil, err
					}
					return failover.New(primary, failover.DenyAll[string](), &failover.Options{Timeout: timeout})
				},
			})
		})
	}
}

func TestEachFailureIsAnsweredAtOnceByTheStandIn(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"unavailable": down,
		"panic":       func(context.Context) error { panic("down") },
		"timeout":     func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"timeout, before the timer of the context has fired": func(context.Context) error {
			return fmt.Errorf("sent and not answered: %w", context.DeadlineExceeded)
		},
		"timeout, unannounced": func(context.Context) error { time.Sleep(time.Minute); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, shared)
				l := over(t, s, newLocal(t, local), failover.Options{})
				require.False(t, take(t, l, 1).Degraded)
				s.fail(fail)
				for want := 99; want > 90; want-- {
					began := time.Now()
					d := take(t, l, 1)
					require.True(t, d.Allowed)
					require.True(t, d.Degraded)
					require.Equal(t, want, d.Remaining)
					require.LessOrEqual(t, time.Since(began), 50*time.Millisecond)
				}
				st := l.Stats()
				require.EqualValues(t, 1, st.Primary)
				require.EqualValues(t, 9, st.Instead)
				require.EqualValues(t, 1, st.Opened)
				require.EqualValues(t, 5, st.Unavailable+st.Timeouts+st.Panics)
				require.EqualValues(t, 6, s.calls.Load(), "the breaker saves the calls that would fail")
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestAnOpenBreakerCallsThePrimaryByOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, newLocal(t, local), failover.Options{Failures: 2, Timeout: 100 * time.Millisecond})
		s.fail(down)
		take(t, l, 1)
		require.Equal(t, failover.StateClosed, l.Stats().State)
		take(t, l, 1)
		require.Equal(t, failover.StateOpen, l.Stats().State)
		require.EqualValues(t, 2, s.calls.Load())

		time.Sleep(800 * time.Millisecond)
		take(t, l, 1)
		require.EqualValues(t, 2, s.calls.Load(), "not before OpenFor less a fifth")

		s.fail(func(context.Context) error { time.Sleep(50 * time.Millisecond); return errDown })
		time.Sleep(400 * time.Millisecond)
		require.Equal(t, failover.StateHalfOpen, l.Stats().State)
		storm(20, func() { require.True(t, take(t, l, 1).Degraded) })
		require.EqualValues(t, 3, s.calls.Load(), "one probe")
		require.Equal(t, failover.StateOpen, l.Stats().State, "which failed")

		s.fail(nil)
		time.Sleep(1200*time.Millisecond + 1)
		require.False(t, take(t, l, 1).Degraded, "a probe is a real decision")
		require.Equal(t, failover.StateClosed, l.Stats().State)
		synctest.Wait()
		require.Equal(t, 10_000-1-23, remaining(t, s.Keyed), "the probe's unit, and those that the stand-in let pass")
		require.EqualValues(t, 2, l.Stats().Opened)
	})
}

// storm runs f on n goroutines at once.
func storm(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

func TestEachLimiterDrawsItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*failover.Limiter[string]
		for range 200 {
			s := newStore(t, shared)
			s.fail(down)
			l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1})
			take(t, l, 1)
			all = append(all, l)
		}
		halfOpen := func() (n int) {
			for _, l := range all {
				if l.Stats().State == failover.StateHalfOpen {
					n++
				}
			}
			return n
		}
		time.Sleep(800 * time.Millisecond)
		require.Zero(t, halfOpen())
		time.Sleep(200 * time.Millisecond)
		require.InDelta(t, 100, halfOpen(), 60)
		time.Sleep(200*time.Millisecond + 1)
		require.Equal(t, 200, halfOpen())
	})
}

// answers returns errors without significance for the primary's health.
func answers() map[string]error {
	return map[string]error{
		"above the capacity": ratelimit.ErrExceedsLimit,
		"blocked":            ratelimit.ErrBlocked,
		"a negative cost":    ratelimit.ErrNegativeCost,
		"an invalid key":     ratelimit.ErrInvalidKey,
		"a full table":       ratelimit.ErrTableFull,
		"a bug":              errors.New("WRONGTYPE"),
	}
}

func TestErrorsAboutTheCallArePassedOnAndCountAsNothing(t *testing.T) {
	for name, want := range answers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, shared)
				l := over(t, s, newLocal(t, local), failover.Options{Failures: 2})
				pass := func(context.Context) error { return want }
				request := func(fail func(context.Context) error) error {
					s.fail(fail)
					_, err := l.Take(context.Background(), "k", 1)
					return err
				}
				require.NoError(t, request(down))
				for range 9 {
					require.Equal(t, want, request(pass))
				}
				require.Equal(t, failover.StateClosed, l.Stats().State)
				require.NoError(t, request(down))
				require.Equal(t, failover.StateOpen, l.Stats().State, "two failures in a row, whatever was between them")

				time.Sleep(1200*time.Millisecond + 1)
				for range 3 {
					require.Equal(t, want, request(pass), "the probe of a broken call")
					require.Equal(t, failover.StateHalfOpen, l.Stats().State)
				}
				require.NoError(t, request(nil))
				require.Equal(t, failover.StateClosed, l.Stats().State)
			})
		})
	}
}

func TestACancelledCallerGetsItsErrorAndIsNoEvidenceForTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, newLocal(t, local), failover.Options{Failures: 1})
		s.fail(func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil })
		for range 10 {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(10*time.Millisecond, cancel)
			began := time.Now()
			_, err := l.Take(ctx, "k", 1)
			require.Equal(t, context.Canceled, err)
			require.Equal(t, 10*time.Millisecond, time.Since(began))
			_, err = l.Reserve(ctx, "k", 1, 0)
			require.Equal(t, context.Canceled, err)
		}
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.Equal(t, failover.Stats{Cancelled: 20}, l.Stats())
		time.Sleep(time.Minute)
	})
}

// On a busy machine, a context's timer fires late. The caller's own deadline counts all the same.
func TestADeadlineOfTheCallerThatHasPassedIsTheCallersBeforeItsTimerFires(t *testing.T) {
	for _, timeout := range []time.Duration{time.Minute, -1} {
		s := newStore(t, shared)
		l := over(t, s, newLocal(t, local), failover.Options{Failures: 1, Timeout: timeout})
		s.fail(func(context.Context) error { return context.DeadlineExceeded })
		d, err := l.Take(lateTimer{context.Background()}, "k", 1)
		require.NoError(t, err)
		require.True(t, d.Degraded)
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.EqualValues(t, 1, l.Stats().Deadlines)
	}
}

// lateTimer is a context past its deadline, but its timer has not fired.
type lateTimer struct{ context.Context }

func (lateTimer) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

func TestAReservationThatComesTooLateIsCancelledAndALateTakeStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, newLocal(t, local), failover.Options{})
		s.fail(func(context.Context) error { time.Sleep(60 * time.Millisecond); return nil })
		r, err := l.Reserve(context.Background(), "k", 7, 0)
		require.NoError(t, err)
		require.True(t, r.Degraded)
		time.Sleep(time.Second)
		require.Equal(t, 10_000, remaining(t, s.Keyed))
		require.EqualValues(t, 2, s.calls.Load(), "reserved, and cancelled")

		require.True(t, take(t, l, 7).Degraded)
		time.Sleep(time.Second)
		require.Equal(t, 9_993, remaining(t, s.Keyed))
	})
}

func TestAPrimaryThatNeverReturnsHoldsNoMoreThan128Calls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: math.MaxInt})
		release := make(chan struct{})
		var under atomic.Int64
		s.fail(func(context.Context) error {
			under.Add(1)
			<-release
			return nil
		})
		for range 3 {
			began := time.Now()
			storm(500, func() { require.True(t, take(t, l, 1).Degraded) })
			require.LessOrEqual(t, time.Since(began), 50*time.Millisecond)
		}
		require.EqualValues(t, 128, under.Load())
		st := l.Stats()
		require.EqualValues(t, 128, st.Timeouts)
		require.EqualValues(t, 3*500-128, st.Busy)
		require.EqualValues(t, 3*500, st.Instead)
		close(release)
		synctest.Wait()
		require.False(t, take(t, l, 1).Degraded, "it works again")
	})
}

func TestABusyPrimaryIsNotAFailingOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		l := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1})
		s.fail(func(context.Context) error { time.Sleep(40 * time.Millisecond); return nil })
		storm(1000, func() { take(t, l, 1) })
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.Equal(t, failover.Stats{Primary: 128, Instead: 872, Busy: 872}, l.Stats())
		time.Sleep(time.Second) // late calls run on without their callers
	})
}

func TestAReservationIsSettledWithTheEngineThatMadeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stand := newStore(t, shared), newLocal(t, local)
		l := over(t, s, stand, failover.Options{Failures: 1})
		reserve := func(degraded bool) *ratelimit.Reservation {
			r, err := l.Reserve(context.Background(), "k", 10, 0)
			require.NoError(t, err)
			require.Equal(t, degraded, r.Degraded)
			return r
		}
		byPrimary := reserve(false)
		s.fail(down)
		byStandIn := reserve(true)
		require.Equal(t, failover.StateOpen, l.Stats().State)
		s.fail(nil)
		require.NoError(t, byPrimary.Settle(4))
		require.Equal(t, 9_996, remaining(t, s.Keyed))
		require.Equal(t, failover.StateOpen, l.Stats().State, "a settlement is not a probe")

		time.Sleep(2 * time.Second)
		take(t, l, 1)
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.NoError(t, byStandIn.Settle(3))
		require.Equal(t, 97, remaining(t, stand))
		require.Equal(t, 9_995, remaining(t, s.Keyed))
	})
}

func TestSettlingEndsWithinTimeoutAndReportsFailures(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"unavailable": down,
		"panic":       func(context.Context) error { panic("secret-key") },
		"timeout":     func(context.Context) error { time.Sleep(time.Minute); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t, shared)
				l := over(t, s, newLocal(t, local), failover.Options{})
				r, err := l.Reserve(context.Background(), "k", 1, 0)
				require.NoError(t, err)
				s.fail(fail)
				began := time.Now()
				err = r.Cancel()
				require.LessOrEqual(t, time.Since(began), 50*time.Millisecond)
				require.ErrorIs(t, err, ratelimit.ErrUnavailable)
				require.NotContains(t, err.Error(), "secret-key")
				require.NoError(t, r.Cancel(), "only the first call counts")
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestACostThatOnlyThePrimaryCanAllowIsDeniedForNow(t *testing.T) {
	s := newStore(t, shared)
	l := over(t, s, newLocal(t, local), failover.Options{OpenFor: 3 * time.Second})
	s.fail(down)
	d := take(t, l, 101)
	require.False(t, d.Allowed)
	require.True(t, d.Degraded)
	require.Equal(t, 3*time.Second, d.RetryAfter)
	r, err := l.Reserve(context.Background(), "k", 101, time.Hour)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, 3*time.Second, r.RetryAfter)

	d, err = l.Take(context.Background(), "k", 10_001)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "nobody can")
	require.True(t, d.Degraded)
	_, err = l.Take(context.Background(), "k", -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
}

// each is a primary with one limit for each key.
type each struct{ *store }

func (each) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: []ratelimit.Limit{{}}, BooksAhead: true}
}

func TestACostIsDeniedForNowIfThePrimarysLimitIsUnknown(t *testing.T) {
	l := over(t, each{newStore(t, shared)}, newLocal(t, local), failover.Options{OpenFor: 3 * time.Second})
	l.Force(failover.StateOpen)
	d := take(t, l, 101)
	require.False(t, d.Allowed)
	require.True(t, d.Degraded)
	require.Equal(t, 3*time.Second, d.RetryAfter)
}

func TestAllowAllAllowsEverything(t *testing.T) {
	s := newStore(t, shared)
	s.fail(down)
	l := over(t, s, failover.AllowAll[string](), failover.Options{})
	d := take(t, l, math.MaxInt)
	require.Equal(t, ratelimit.Decision{Allowed: true, Degraded: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, d)
	r, err := l.Reserve(context.Background(), "k", 5, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, r.Settle(7))
	require.False(t, l.Allow("k", -1))
	_, err = l.Take(context.Background(), "k", -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
}

func TestDenyAllDeniesEverythingWithoutAnError(t *testing.T) {
	s := newStore(t, shared)
	s.fail(down)
	l := over(t, s, failover.DenyAll[string](), failover.Options{})
	d := take(t, l, 1)
	require.Equal(t, ratelimit.Decision{Degraded: true, RetryAfter: time.Second, NextAfter: time.Second, Limit: shared}, d, "under the primary's limit")
	r, err := l.Reserve(context.Background(), "k", 1, time.Hour)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.True(t, take(t, l, 0).Allowed, "a cost of 0 is always allowed")
	require.False(t, l.Allow("k", 1))
}

func TestWaitGoesOnWhenThePrimaryIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		s.fail(down)
		// the breaker stays closed, so the primary is called each time
		l := over(t, s, failover.DenyAll[string](), failover.Options{Failures: 1000})
		time.AfterFunc(2500*time.Millisecond, func() { s.fail(nil) })
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		began := time.Now()
		require.NoError(t, ratelimit.Wait(ctx, l, "k", 1))
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}

func TestChangesOfStateAreReportedInOrderUnderNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, shared)
		var l *failover.Limiter[string]
		var reported []string
		l = over(t, s, newLocal(t, local), failover.Options{Failures: 1, OnStateChange: func(from, to failover.State) {
			reported = append(reported, from.String()+" to "+to.String())
			require.Equal(t, to, l.Stats().State)
			require.True(t, l.Allow("another", 1))
		}})
		s.fail(down)
		take(t, l, 1)
		time.Sleep(1200*time.Millisecond + 1)
		s.fail(nil)
		l.Stats()
		require.Equal(t, []string{"closed to open", "open to half-open"}, reported[:2])
		take(t, l, 1)
		require.Equal(t, failover.StateClosed, l.Stats().State)
		require.Equal(t, []string{"closed to open", "open to half-open", "half-open to closed"}, reported)
	})
}

func TestAPanicIsLoggedWithItsPlaceAndNotItsValue(t *testing.T) {
	var out bytes.Buffer
	s := newStore(t, shared)
	l := over(t, s, newLocal(t, local), failover.Options{Timeout: time.Minute, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	s.fail(func(context.Context) error { panic("no entry for secret-key") })
	require.True(t, take(t, l, 1).Degraded)
	require.Contains(t, out.String(), "the primary panicked with a string, at github.com/weir-go/ratelimit/failover_test.TestAPanicIsLogged")
	require.NotContains(t, out.String(), "secret-key")
	require.EqualValues(t, 1, l.Stats().Panics)
}

func TestANilReservationOfThePrimaryIsADenial(t *testing.T) {
	l := over(t, silence{newStore(t, shared)}, newLocal(t, local), failover.Options{Timeout: time.Minute})
	r, err := l.Reserve(context.Background(), "k", 1, 0)
	require.NoError(t, err)
	require.False(t, r.Allowed)
}

// silence breaks Reserve's contract: it returns a nil reservation.
type silence struct{ *store }

func (silence) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	return nil, nil
}

// In a window with one outage, at most the shared limit and each node's local
// limit pass. If the store came back empty, the shared limit passes once more.
func TestTheBoundOfAnOutage(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const nodes = 8
				s := newStore(t, shared)
				var all []*failover.Limiter[string]
				for range nodes {
					all = append(all, over(t, s, newLocal(t, local), failover.Options{}))
				}
				admitted := 0
				demand := func(until time.Duration) {
					for end := time.Now().Add(until); time.Now().Before(end); time.Sleep(time.Millisecond) {
						for _, l := range all {
							if take(t, l, 5).Allowed {
								admitted += 5
							}
						}
					}
				}
				demand(100 * time.Millisecond)
				s.fail(down)
				demand(3 * time.Second)
				if lost {
					s.Reset(context.Background(), "k")
				}
				s.fail(nil)
				demand(3 * time.Second)
				bound := shared.Burst + nodes*local.Burst
				if lost {
					bound += shared.Burst
				}
				require.LessOrEqual(t, admitted, bound)
				require.Greater(t, admitted, bound-bound/2)
			})
		})
	}
}

func TestOptionalMethodsPassThrough(t *testing.T) {
	s, stand := newStore(t, shared), newLocal(t, local)
	var l ratelimit.Limiter[string] = over(t, s, stand, failover.Options{Failures: 1, Timeout: time.Minute})
	take(t, l, 10_000)
	d, err := ratelimit.Peek(t.Context(), l, "k", 1)
	require.NoError(t, err)
	require.False(t, d.Allowed || d.Degraded)
	require.NoError(t, ratelimit.Adjust(t.Context(), l, "k", -3))
	require.Equal(t, 3, remaining(t, s.Keyed))
	require.True(t, stand.Allow("k", 100))
	require.NoError(t, ratelimit.Reset(t.Context(), l, "k"))
	require.Equal(t, 10_000, remaining(t, s.Keyed))
	require.Equal(t, 100, remaining(t, stand))
}

func TestWhileThePrimaryFailsItsKeysAreNeitherAdjustedNorReset(t *testing.T) {
	stand := newLocal(t, local)
	l := over(t, newStore(t, shared), stand, failover.Options{Failures: 1, Timeout: time.Minute})
	l.Force(failover.StateOpen)
	take(t, l, 100)
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.False(t, d.Allowed)
	require.True(t, d.Degraded)
	require.ErrorIs(t, l.Adjust(t.Context(), "k", -3), ratelimit.ErrUnavailable)
	require.ErrorIs(t, l.Reset(t.Context(), "k"), ratelimit.ErrUnavailable)
	require.Equal(t, 100, remaining(t, stand), "what stands in has forgotten it all the same")
}

func TestOptionalMethodsThatThePrimaryLacksAreUnsupported(t *testing.T) {
	l := over(t, unreachable{}, failover.AllowAll[string](), failover.Options{})
	_, err := l.Peek(t.Context(), "k", 1)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, l.Adjust(t.Context(), "k", 1), errors.ErrUnsupported)
	require.ErrorIs(t, l.Reset(t.Context(), "k"), errors.ErrUnsupported)
}

func TestCallsThatOverlapUseTheWholeLimitThroughAFailover(t *testing.T) {
	clock := new(ratelimittest.Clock)
	primary := ratelimit.Must(ratelimit.New(overlap.TokensPerMinute, &ratelimit.Options[string]{Clock: clock}))
	l := ratelimit.Must(failover.New(primary, failover.DenyAll[string](), &failover.Options{Timeout: -1}))
	require.InDelta(t, 100_000, overlap.Overlap(t, clock, l, "tenant"), 5000)
}
