package failover_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/figures"
	"github.com/weir-go/ratelimit/lease"
)

// hang blocks a call until its context ends.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// leased puts a lease over a failover. The failover's primary hangs, and its breaker stays closed.
func leased(t *testing.T, instead ratelimit.Reserver[string]) *lease.Limiter[string] {
	s := newStore(t, shared)
	s.fail(hang)
	guarded := over(t, s, instead, failover.Options{Timeout: 50 * time.Millisecond, Failures: 1000})
	l, err := lease.New(guarded, &lease.Options[string]{MaxBatch: 100})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Flush(context.Background()) })
	return l
}

func TestALeaseWaitsOnlyOnceForAPrimaryThatHangs(t *testing.T) {
	few := ratelimit.TokenBucket(ratelimit.PerHour(1), 3) // less than a batch
	for name, instead := range map[string]func() ratelimit.Reserver[string]{
		"a local limiter": func() ratelimit.Reserver[string] { return newLocal(t, few) },
		"denials":         failover.DenyAll[string],
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := leased(t, instead())
				var wg sync.WaitGroup
				for i := range 16 {
					wg.Go(func() {
						began := time.Now()
						var d ratelimit.Decision
						if i%2 == 0 {
							d, _ = l.Take(context.Background(), "k", 1)
						} else {
							res, _ := l.Reserve(context.Background(), "k", 1, 0)
							d = res.Decision
						}
						assert.True(t, d.Degraded)
						assert.Equal(t, 50*time.Millisecond, time.Since(began))
					})
				}
				wg.Wait()
			})
		})
	}
}

// slow is a limiter that sleeps before each reservation.
type slow struct{ ratelimit.Reserver[string] }

func (s slow) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	time.Sleep(time.Millisecond)
	return s.Reserver.Reserve(ctx, key, cost, maxDelay)
}

// One decision's failure does not spread from caller to caller.
func TestALeaseReturnsToAPrimaryThatHasFailedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1_000_000))
		var failed atomic.Bool
		s.fail(func(ctx context.Context) error {
			if failed.CompareAndSwap(false, true) {
				return hang(ctx)
			}
			time.Sleep(time.Millisecond)
			return nil
		})
		local := slow{newLocal(t, ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 4))}
		guarded := over(t, s, local, failover.Options{Timeout: 50 * time.Millisecond, Failures: 1000})
		l, err := lease.New(guarded, &lease.Options[string]{MaxBatch: 4, DenyFor: -1})
		require.NoError(t, err)
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Microsecond)
				for time.Since(began) < time.Second {
					d, err := l.Take(context.Background(), "k", 1)
					assert.NoError(t, err)
					if time.Since(began) > 200*time.Millisecond {
						assert.False(t, d.Degraded, "after %v", time.Since(began))
					}
					time.Sleep(100 * time.Microsecond)
				}
			})
		}
		wg.Wait()
		require.NoError(t, l.Flush(context.Background()))
	})
}

// A stand-in may itself have a primary and a stand-in.
func TestAStandInThatWorksIsCalledAsOftenAsItIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := newLocal(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 3))
		l := leased(t, over(t, &store{Keyed: second}, failover.AllowAll[string](), failover.Options{}))
		for i := range 5 {
			d, err := l.Take(context.Background(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, i < 3, d.Allowed, "decision %d", i)
		}
	})
}

// Behind a lease over a failover, no caller gets the primary's errors, whichever timeout is shorter.
func TestALeaseOverAFailoverHidesThePrimarysFailuresWhateverTheTimeouts(t *testing.T) {
	few := ratelimit.TokenBucket(ratelimit.PerHour(1), 3) // less than a batch
	for _, outer := range []time.Duration{8, 40, 50, 57, 100, 1000} {
		for name, instead := range map[string]func() ratelimit.Reserver[string]{
			"a local limiter": func() ratelimit.Reserver[string] { return newLocal(t, wide) },
			"a small one":     func() ratelimit.Reserver[string] { return newLocal(t, few) },
			"denials":         failover.DenyAll[string],
		} {
			t.Run(fmt.Sprintf("%dms, %s", outer, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStore(t, wide)
					guarded := over(t, s, instead(), failover.Options{Failures: 1000, MaxCalls: 4})
					l, err := lease.New(guarded, &lease.Options[string]{MaxBatch: 10, Timeout: outer * time.Millisecond, DenyFor: -1})
					require.NoError(t, err)
					for range 20 {
						_, err := l.Take(context.Background(), "k", 1)
						require.NoError(t, err)
					}
					s.fail(takes(time.Second))
					var wg sync.WaitGroup
					for i := range 60 {
						wg.Go(func() {
							for range 5 {
								key := []string{"k", "l", "m"}[i%3]
								cost := 1 + i%12 // some costs are above MaxBatch
								var d ratelimit.Decision
								var err error
								if i%2 == 0 {
									d, err = l.Take(context.Background(), key, cost)
								} else {
									var res *ratelimit.Reservation
									res, err = l.Reserve(context.Background(), key, cost, time.Duration(i%3)*time.Second)
									d = res.Decision
								}
								assert.NoError(t, err)
								assert.True(t, d.Degraded || d.Allowed)
							}
						})
						time.Sleep(time.Millisecond)
					}
					wg.Wait()
					_ = l.Flush(context.Background())
					time.Sleep(time.Minute)
				})
			})
		}
	}
}

func TestALeaseOverAFailoverAnswersCallersWithShortDeadlines(t *testing.T) {
	t.Run("as it is", func(t *testing.T) {
		answersShortDeadlines(t, func(l ratelimit.Reserver[string]) ratelimit.Reserver[string] { return l })
	})
	t.Run("timed", func(t *testing.T) {
		answersShortDeadlines(t, func(l ratelimit.Reserver[string]) ratelimit.Reserver[string] {
			return figures.Timed(l, func(context.Context, time.Duration) {})
		})
	})
}

func answersShortDeadlines(t *testing.T, around func(ratelimit.Reserver[string]) ratelimit.Reserver[string]) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		s.fail(takes(time.Minute))
		guarded := over(t, s, newLocal(t, wide), failover.Options{Failures: 1000})
		l, err := lease.New(around(guarded), &lease.Options[string]{MaxBatch: 10})
		require.NoError(t, err)
		for i := range 60 {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			began := time.Now()
			var d ratelimit.Decision
			var err error
			if i%2 == 0 {
				d, err = l.Take(ctx, "k", 1+i%12)
			} else {
				var r *ratelimit.Reservation
				r, err = l.Reserve(ctx, "k", 1+i%12, 0)
				d = r.Decision
			}
			cancel()
			require.NoError(t, err)
			require.True(t, d.Allowed && d.Degraded)
			require.LessOrEqual(t, time.Since(began), 20*time.Millisecond)
		}
		_ = l.Flush(context.Background())
		time.Sleep(time.Hour)
	})
}
