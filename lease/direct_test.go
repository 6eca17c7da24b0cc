package lease_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
)

// holds spends units until the limiter holds at least most units of "k", and
// returns how many it holds. The remote limiter must have more than enough.
func holds(t *testing.T, l *lease.Limiter[string], most int) int {
	t.Helper()
	for l.Stats().Held < most {
		require.True(t, l.Allow("k", 1))
		synctest.Wait()
	}
	return l.Stats().Held
}

// leave sets the remaining budget of "k" at the remote limiter.
func leave(t *testing.T, s *server, units int) {
	t.Helper()
	d, err := s.Peek(context.Background(), "k", 0)
	require.NoError(t, err)
	require.NoError(t, s.Adjust(context.Background(), "k", d.Remaining-units))
}

// Reserve and Wait spend held units, too. They need no more of the remote limiter's budget than Take does.
func TestHeldUnitsCountForACallThatWouldWait(t *testing.T) {
	limit := ratelimit.TokenBucket(ratelimit.PerHour(1), 10_000)
	for name, spend := range map[string]func(l *lease.Limiter[string], cost int) error{
		"Take": func(l *lease.Limiter[string], cost int) error {
			d, err := l.Take(context.Background(), "k", cost)
			return denied(d, err)
		},
		"Reserve": func(l *lease.Limiter[string], cost int) error {
			r, err := l.Reserve(context.Background(), "k", cost, time.Minute)
			return denied(r.Decision, err)
		},
		"Wait": func(l *lease.Limiter[string], cost int) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return l.Wait(ctx, "k", cost)
		},
	} {
		for _, most := range []int{40, 12} { // costs below and above MaxBatch
			t.Run(fmt.Sprintf("%s, MaxBatch %d", name, most), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newServer(t, limit)
					l := leased(t, s, lease.Options[string]{MaxBatch: most})
					held := holds(t, l, most/2)
					leave(t, s, 3)
					before := s.total()
					require.NoError(t, spend(l, held+3))
					require.Zero(t, l.Stats().Held)
					require.Equal(t, before+3, s.total())

					d, err := s.Peek(context.Background(), "k", 0)
					require.NoError(t, err)
					require.Zero(t, d.Remaining)
				})
			})
		}
	}
}

func denied(d ratelimit.Decision, err error) error {
	if err == nil && !d.Allowed {
		return fmt.Errorf("denied for %v", d.RetryAfter)
	}
	return err
}

func TestACallThatSpendsNothingPutsHeldUnitsBack(t *testing.T) {
	for name, c := range map[string]struct {
		fault    func(context.Context) error
		maxDelay time.Duration
		wait     bool // whether to call Wait, with a deadline after maxDelay
		allowed  bool // whether the reservation is allowed, and then cancelled
		err      error
	}{
		"a Wait that would be too late":   {maxDelay: 2 * time.Hour, wait: true, err: context.DeadlineExceeded},
		"a reservation that is denied":    {maxDelay: 2 * time.Hour},
		"a reservation without an answer": {maxDelay: 2 * time.Hour, fault: down, err: errDown},
		"a reservation that is cancelled": {maxDelay: 3 * time.Hour, allowed: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newServer(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 10_000))
				l := leased(t, s, lease.Options[string]{MaxBatch: 40})
				held := holds(t, l, 20)
				leave(t, s, 0)
				s.fail(c.fault)
				if c.wait {
					ctx, cancel := context.WithTimeout(context.Background(), c.maxDelay)
					defer cancel()
					require.ErrorIs(t, l.Wait(ctx, "k", held+3), c.err)
				} else {
					r, err := l.Reserve(context.Background(), "k", held+3, c.maxDelay)
					require.ErrorIs(t, err, c.err)
					require.Equal(t, c.allowed, r.Allowed)
					if c.allowed {
						require.Equal(t, 3*time.Hour, r.Delay)
						require.NoError(t, r.Cancel())
					}
				}
				require.Equal(t, held, l.Stats().Held)
				s.fail(nil)
				d, err := s.Peek(context.Background(), "k", 0)
				require.NoError(t, err)
				require.Equal(t, []any{0, 10_000 * time.Hour}, []any{d.Remaining, d.ResetAfter}, "what was booked is given back")
			})
		})
	}
}

func down(context.Context) error { return errDown }

func TestAReservationOfHeldUnitsAndMoreIsSettledInBoth(t *testing.T) {
	for actual, want := range map[int]struct{ held, charged int }{
		0:  {20, -10},
		5:  {15, -10},
		20: {0, -10},
		24: {0, -6},
		30: {0, 0},
		35: {0, 5},
	} {
		t.Run(fmt.Sprint(actual), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newServer(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 10_000))
				l := leased(t, s, lease.Options[string]{MaxBatch: 40})
				held := holds(t, l, 20)
				l.Allow("k", held-20)
				synctest.Wait()
				if l.Stats().Held != 20 {
					t.Fatalf("%d are held", l.Stats().Held)
				}
				leave(t, s, 0)
				r, err := l.Reserve(context.Background(), "k", 30, 100*time.Hour)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.Zero(t, l.Stats().Held)
				before := s.total()
				require.NoError(t, r.Settle(actual))
				require.Equal(t, want.held, l.Stats().Held)
				require.Equal(t, want.charged, s.total()-before)
			})
		})
	}
}

// A denial's RetryAfter is right for the denied cost. It is wrong for another cost.
func TestADenialIsNotReturnedForAnotherCost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 50))
		l := leased(t, s, lease.Options[string]{MaxBatch: 100})
		leave(t, s, 0)
		require.Equal(t, time.Second, take(t, l, 1).RetryAfter)
		require.Equal(t, 40*time.Second, take(t, l, 40).RetryAfter)
		require.Equal(t, 2*time.Second, reserve(t, l, 2).RetryAfter)
		_, err := l.Take(context.Background(), "k", 51)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		s.received(&s.requested)
		require.False(t, l.Allow("k", 2))
		require.False(t, l.Allow("k", 30), "a larger cost is denied too, and Allow tells no time")
		require.Equal(t, 2*time.Second, take(t, l, 2).RetryAfter)
		require.Empty(t, s.received(&s.requested))
	})
}

// Only one process leases from the remote limiter. So it allows and denies as that limiter would, and returns the same times.
func TestALeaseOfOneProcessAgreesWithOneExactLimiter(t *testing.T) {
	for seed := range uint64(runs()) {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(testsize.Seed(seed), 15))
			limit := ratelimit.TokenBucket(ratelimit.Per(1+r.IntN(30), time.Duration(1+r.IntN(2000))*time.Millisecond), 2+r.IntN(200))
			if r.IntN(3) == 0 {
				limit = ratelimit.SlidingLog(ratelimit.Per(2+r.IntN(200), time.Duration(1+r.IntN(20_000))*time.Millisecond))
			}
			s := newServer(t, limit)
			l := leased(t, s, lease.Options[string]{
				MaxBatch: 1 + r.IntN(60),
				HoldFor:  time.Hour, // long enough that no unit is given back because of its age
				DenyFor:  time.Duration(r.IntN(3)-1) * 200 * time.Millisecond,
			})
			used := 0 // the units of allowed calls
			for step := range 150 {
				cost := 1 + r.IntN(limit.Capacity())
				if r.IntN(3) > 0 {
					cost = 1 + r.IntN(min(4, limit.Capacity()))
				}
				held := l.Stats().Held
				left, err := s.Peek(context.Background(), "k", max(1, cost-held))
				require.NoError(t, err)
				at := fmt.Sprintf("seed %d, step %d: cost %d, %d held, %d left, %v", seed, step, cost, held, left.Remaining, limit)
				var d ratelimit.Decision
				var res *ratelimit.Reservation
				switch maxDelay := time.Duration(r.IntN(4)) * time.Second; r.IntN(4) {
				case 0:
					res, err = l.Reserve(context.Background(), "k", cost, maxDelay)
					d = res.Decision
					if maxDelay >= left.RetryAfter {
						require.True(t, d.Allowed, "%s: maxDelay %v", at, maxDelay)
					}
				case 1:
					ctx, cancel := context.WithCancel(context.Background())
					cancel()
					if d, err = l.Take(ctx, "k", cost); err != nil {
						require.ErrorIs(t, err, context.Canceled)
						err = nil
					}
				default:
					d, err = l.Take(context.Background(), "k", cost)
					require.Equal(t, held+left.Remaining >= cost, d.Allowed, at)
					if !d.Allowed {
						require.Equal(t, left.RetryAfter, d.RetryAfter, at)
					}
				}
				require.NoError(t, err, at)
				if d.Allowed {
					used += cost
				}
				if d.Allowed && res != nil && r.IntN(2) == 0 {
					actual := r.IntN(cost + 3)
					require.NoError(t, res.Settle(actual))
					used -= cost - actual
				}
				synctest.Wait()
				st := l.Stats()
				require.Equal(t, s.total(), used+st.Held+int(st.UnitsLost), at)
				if r.IntN(3) == 0 {
					s.clock.Advance(time.Duration(r.IntN(1500)) * time.Millisecond)
				}
			}
			require.NoError(t, l.Flush(context.Background()))
		})
	}
}

var histories = flag.Int("histories", testsize.Of(25, 1000), "random runs of each test that compares with a model")

// runs returns how many random runs a test makes.
func runs() int { return *histories }
