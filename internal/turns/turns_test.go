package turns_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// remote is a limiter whose decisions take 1 ms.
type remote struct {
	limiter *ratelimit.Keyed[string]
	trips   atomic.Int64
	fails   atomic.Bool // giving a booking back fails
}

func newRemote(limit ratelimit.Limit) *remote {
	return &remote{limiter: ratelimit.Must(ratelimit.New[string](limit, nil))}
}

var errUnsettled = errors.New("the booking stays")

func (r *remote) trip() {
	time.Sleep(time.Millisecond)
	r.trips.Add(1)
}

// wait waits in one process.
func (r *remote) wait(ctx context.Context, process *turns.Lines[string]) error {
	left, err := wait.Left(ctx)
	if err != nil {
		return err
	}
	_, err = process.Wait(ctx, "k", left, func() (*ratelimit.Reservation, error) {
		res, err := r.limiter.Reserve(context.Background(), "k", 1, left)
		r.trip()
		if err == nil && !res.Allowed {
			err = context.DeadlineExceeded
		}
		return ratelimit.NewReservation(res.Decision, func(actual int) error {
			r.trip()
			if r.fails.Load() {
				return errUnsettled
			}
			return res.Settle(actual)
		}), err
	})
	return err
}

func TestTheRateIsServedWhicheverCallersLeaveInOneProcessAndInFour(t *testing.T) {
	for _, rate := range []int{20, 100} {
		for _, processes := range []int{1, 4} {
			for _, burst := range []int{1, 5, 100} {
				for _, offered := range []float64{1.05, 1.5, 2, 10} {
					t.Run(fmt.Sprintf("%d a second/%d processes/burst %d/%v×", rate, processes, burst, offered), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst))
							lines := make([]turns.Lines[string], processes)
							rng := rand.New(rand.NewPCG(1, 1))
							begin := time.Now().Add(5 * time.Second)
							end := begin.Add(20 * time.Second)
							var served, left, callers atomic.Int64
							var wg sync.WaitGroup
							for time.Now().Before(end) {
								process := &lines[rng.IntN(processes)]
								wg.Go(func() {
									ctx, cancel := context.WithCancel(context.Background())
									defer cancel()
									defer time.AfterFunc(2*time.Second, cancel).Stop()
									callers.Add(1)
									if r.wait(ctx, process) != nil {
										left.Add(1)
									} else if now := time.Now(); !now.Before(begin) && now.Before(end) {
										served.Add(1)
									}
								})
								time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second) / float64(rate) / offered))
							}
							wg.Wait()
							time.Sleep(time.Second)
							perSecond := float64(served.Load()) / 20
							t.Logf("%.1f of %d, %.2f round trips for each caller", perSecond, rate, float64(r.trips.Load())/float64(callers.Load()))
							least := .95
							if processes > 1 {
								least = .90
							}
							require.GreaterOrEqual(t, perSecond, least*float64(rate))
							require.LessOrEqual(t, r.trips.Load(), callers.Load()+left.Load())
							d, err := r.limiter.Peek(context.Background(), "k", 1)
							require.NoError(t, err)
							require.True(t, d.Allowed, "nothing stays booked: %v", d)
						})
					})
				}
			}
		}
	}
}

func TestCallersThatAllLeaveGiveEverythingBackBeforeTheLastReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerHour(1), 1))
		var process turns.Lines[string]
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var wg sync.WaitGroup
		require.NoError(t, r.wait(t.Context(), &process))
		for range 200 {
			wg.Go(func() { _ = r.wait(ctx, &process) })
		}
		time.Sleep(time.Second)
		leave()
		wg.Wait()
		d, err := r.limiter.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.LessOrEqual(t, d.RetryAfter, time.Hour, "only the first one's cost is spent")
	})
}

func TestAVacantSlotTakesNoRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
		var process turns.Lines[string]
		require.NoError(t, r.wait(t.Context(), &process))
		start := time.Now()
		gone, leave := context.WithCancel(t.Context())
		defer leave()
		var at [3]time.Duration
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { _ = r.wait(t.Context(), &process) })
		}
		time.Sleep(10 * time.Millisecond)
		for i, ctx := range []context.Context{gone, t.Context(), t.Context()} {
			if i == 2 {
				leave()
				synctest.Wait()
			}
			before := r.trips.Load()
			wg.Go(func() {
				if r.wait(ctx, &process) == nil {
					at[i] = time.Since(start).Round(10 * time.Millisecond)
				}
			})
			time.Sleep(2 * time.Millisecond)
			if i == 2 {
				require.Equal(t, before, r.trips.Load(), "it has the booking of the one that left")
			}
		}
		wg.Wait()
		require.Equal(t, [3]time.Duration{0, 9 * time.Second, 10 * time.Second}, at)
	})
}

func TestABookingThatCannotBeGivenBackIsInTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerHour(1), 1))
		var process turns.Lines[string]
		require.NoError(t, r.wait(t.Context(), &process))
		r.fails.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		time.AfterFunc(time.Second, leave)
		err := r.wait(ctx, &process)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errUnsettled)
	})
}

func TestAContextThatEndsAtTheInstantOfTheTurnWasInTime(t *testing.T) {
	for range 50 { // select chooses at random
		synctest.Test(t, func(t *testing.T) {
			r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
			var process turns.Lines[string]
			require.NoError(t, r.wait(t.Context(), &process))
			ctx, leave := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, leave)
			require.NoError(t, r.wait(ctx, &process))
		})
	}
}
