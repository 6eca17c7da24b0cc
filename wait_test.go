package ratelimit_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/model"
)

// bubble runs a test on synctest's time, with a limiter that was built in it.
func bubble(t *testing.T, l ratelimit.Limit, test func(t *testing.T, b *waiters)) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ratelimit.New[string](l, nil)
		require.NoError(t, err)
		test(t, &waiters{limiter: limiter, start: time.Now()})
		synctest.Wait()
	})
}

// waiters collects who was served, and when.
type waiters struct {
	limiter *ratelimit.Keyed[string]
	start   time.Time
	wg      sync.WaitGroup
	mu      sync.Mutex // guards the fields below
	served  []string
	at      []time.Duration
	failed  map[string]error
}

// wait starts a waiter, and returns once it waits or is done.
func (w *waiters) wait(ctx context.Context, name string, cost int) {
	w.wg.Go(func() { w.done(name, w.limiter.Wait(ctx, "k", cost)) })
	synctest.Wait()
}

func (w *waiters) done(name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if w.failed == nil {
			w.failed = map[string]error{}
		}
		w.failed[name] = err
		return
	}
	w.served, w.at = append(w.served, name), append(w.at, time.Since(w.start))
}

func seconds(ns ...float64) (all []time.Duration) {
	for _, n := range ns {
		all = append(all, time.Duration(n*float64(time.Second)))
	}
	return all
}

func TestWaitersOfAKeyAreServedInTheirOrder(t *testing.T) {
	for _, tt := range []struct {
		limit ratelimit.Limit
		want  []time.Duration // of costs of 2, 1, 2, 1, 2 within 2 a second
	}{
		{ratelimit.TokenBucket(ratelimit.PerSecond(2), 2), seconds(0, .5, 1.5, 2, 3)},
		{ratelimit.FixedWindow(ratelimit.PerSecond(2)), seconds(0, 1, 2, 3, 4)},
		{ratelimit.SlidingLog(ratelimit.PerSecond(2)), seconds(0, 1, 2, 3, 4)},
		{ratelimit.SlidingCounter(ratelimit.PerSecond(2)), seconds(0, 1.5, 3, 4.5, 6)},
	} {
		t.Run(tt.limit.Algorithm.String(), func(t *testing.T) {
			bubble(t, tt.limit, func(t *testing.T, w *waiters) {
				for i, name := range []string{"a", "b", "c", "d", "e"} {
					w.wait(t.Context(), name, 2-i%2)
				}
				w.wg.Wait()
				require.Equal(t, []string{"a", "b", "c", "d", "e"}, w.served)
				require.Equal(t, tt.want, w.at)
			})
		})
	}
}

func TestTakeQueuesBehindWaiters(t *testing.T) {
	bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 2), func(t *testing.T, w *waiters) {
		w.wait(t.Context(), "first", 2)
		w.wait(t.Context(), "second", 2) // at 2 s
		time.Sleep(time.Second)
		d, err := w.limiter.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.Equal(t, 2*time.Second, d.RetryAfter)
		w.wg.Wait()
	})
}

func TestCancelledWaiterGivesBackWhatItBooked(t *testing.T) {
	for _, l := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.SlidingLog(ratelimit.PerSecond(1)),
	} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			bubble(t, l, func(t *testing.T, w *waiters) {
				w.wait(t.Context(), "first", 1)
				before, _ := w.limiter.Peek("k", 1)
				ctx, cancel := context.WithCancel(t.Context())
				w.wait(ctx, "gone", 1)
				cancel()
				synctest.Wait()
				require.ErrorIs(t, w.failed["gone"], context.Canceled)
				after, _ := w.limiter.Peek("k", 1)
				require.Equal(t, before, after)
				w.wg.Wait()
			})
		})
	}
}

func TestThoseBehindACancelledWaiterKeepTheirInstants(t *testing.T) {
	bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), func(t *testing.T, w *waiters) {
		ctx, cancel := context.WithCancel(t.Context())
		w.wait(t.Context(), "at 0", 1)
		w.wait(ctx, "gone", 1)
		w.wait(t.Context(), "at 2", 1)
		w.wait(t.Context(), "at 3", 1)
		cancel()
		w.wait(t.Context(), "at 4", 1)
		w.wg.Wait()
		require.Equal(t, []string{"at 0", "at 2", "at 3", "at 4"}, w.served)
		require.Equal(t, seconds(0, 2, 3, 4), w.at)
	})
}

func TestDeadlineThatComesFirstIsRefusedAtOnce(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerSecond(1)) {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			bubble(t, l, func(t *testing.T, w *waiters) {
				w.wait(t.Context(), "first", 1)
				time.Sleep(time.Millisecond) // the leaky bucket's queue is full no more for good
				before, _ := w.limiter.Peek("k", 1)
				ctx, cancel := context.WithTimeout(t.Context(), before.RetryAfter-1)
				defer cancel()
				err := w.limiter.Wait(ctx, "k", 1)
				require.Equal(t, time.Millisecond, time.Since(w.start), "at once")
				if l.Algorithm == ratelimit.AlgorithmLeakyBucket {
					require.ErrorIs(t, err, ratelimit.ErrLimited)
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				after, _ := w.limiter.Peek("k", 1)
				require.Equal(t, before, after, "nothing is spent")
			})
		})
	}
}

func TestDeadlineThatIsJustMetIsWaitedFor(t *testing.T) {
	bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), func(t *testing.T, w *waiters) {
		w.wait(t.Context(), "first", 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+1)
		defer cancel()
		require.NoError(t, w.limiter.Wait(ctx, "k", 1))
		require.Equal(t, time.Second, time.Since(w.start))
	})
}

func TestLeakyBucketRefusesADeadlineBeforeTheTurnComes(t *testing.T) {
	bubble(t, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 5), func(t *testing.T, w *waiters) {
		w.wait(t.Context(), "first", 3)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second-1)
		defer cancel()
		err := w.limiter.Wait(ctx, "k", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ratelimit.ErrLimited)
		require.Zero(t, time.Since(w.start), "at once")
	})
}

func TestLeakyBucketWaitersLeaveEvenlySpaced(t *testing.T) {
	bubble(t, ratelimit.LeakyBucket(ratelimit.PerSecond(4), 5), func(t *testing.T, w *waiters) {
		for _, name := range []string{"a", "b", "c", "d", "e", "one too many"} {
			w.wait(t.Context(), name, 1)
		}
		require.ErrorIs(t, w.failed["one too many"], ratelimit.ErrLimited)
		w.wg.Wait()
		require.Equal(t, []string{"a", "b", "c", "d", "e"}, w.served)
		require.Equal(t, seconds(0, .25, .5, .75, 1), w.at)
	})
}

func TestManyWaitersOfALeakyBucketLeaveEvenlySpaced(t *testing.T) {
	bubble(t, ratelimit.LeakyBucket(ratelimit.PerSecond(1000), 1000), func(t *testing.T, w *waiters) {
		for range 1000 {
			w.wg.Go(func() { w.done("one", w.limiter.Wait(t.Context(), "k", 1)) })
		}
		w.wg.Wait()
		require.Empty(t, w.failed)
		for i, at := range w.at {
			require.Equal(t, time.Duration(i)*time.Millisecond, at)
		}
	})
}

func TestWaitWithoutAContextWaits(t *testing.T) {
	bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), func(t *testing.T, w *waiters) {
		var none context.Context
		require.NoError(t, w.limiter.Wait(none, "k", 1))
		require.NoError(t, w.limiter.Wait(none, "k", 1))
		require.Equal(t, time.Second, time.Since(w.start))
	})
}

func TestWaitThatFailsSpendsNothing(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	past, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	tests := map[string]struct {
		ctx  context.Context
		cost int
		want error
	}{
		"cancelled before":       {cancelled, 1, context.Canceled},
		"cancelled, and no cost": {cancelled, 0, context.Canceled},
		"deadline in the past":   {past, 1, context.DeadlineExceeded},
		"cost above capacity":    {context.Background(), 6, ratelimit.ErrExceedsLimit},
		"negative cost":          {context.Background(), -1, ratelimit.ErrNegativeCost},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 5))
			require.ErrorIs(t, r.limiter.Wait(tt.ctx, "k", tt.cost), tt.want)
			require.Zero(t, r.limiter.Len())
		})
	}
}

func TestEveryWaitIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []ratelimit.Event[string]
		limiter, err := ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{
			OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) },
		})
		require.NoError(t, err)
		require.NoError(t, limiter.Wait(t.Context(), "k", 1))
		require.NoError(t, limiter.Wait(t.Context(), "k", 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		refused := limiter.Wait(ctx, "k", 1)
		exceeds := limiter.Wait(t.Context(), "k", 2)
		require.Len(t, events, 4)
		require.True(t, events[0].Decision.Allowed)
		require.Equal(t, time.Second, events[1].Decision.Delay)
		require.Equal(t, refused, events[2].Err)
		require.False(t, events[2].Decision.Allowed)
		require.Equal(t, exceeds, events[3].Err)
		require.Equal(t, 2, events[3].Cost)
	})
}

// A wait whose context ends while it sleeps is one decision too, and its end is no success.
func TestWaitCancelledWhileItSleepsIsReportedAsFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []ratelimit.Event[string]
		limiter, err := ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{
			OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) },
		})
		require.NoError(t, err)
		require.True(t, limiter.Allow("k", 1))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		require.ErrorIs(t, limiter.Wait(ctx, "k", 1), context.Canceled)
		require.Len(t, events, 2)
		require.ErrorIs(t, events[1].Err, context.Canceled)
	})
}

func TestWaitersThatComeAndGoNeverShareAnInstant(t *testing.T) {
	bubble(t, ratelimit.SlidingLog(ratelimit.PerSecond(3)), func(t *testing.T, w *waiters) {
		for i := range 300 {
			ctx := t.Context()
			if i%3 == 1 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				time.AfterFunc(time.Duration(i*37%9000)*time.Millisecond, cancel)
			}
			w.wg.Go(func() { w.done(strconv.Itoa(i), w.limiter.Wait(ctx, "k", 1)) })
		}
		w.wg.Wait()
		require.GreaterOrEqual(t, len(w.served), 200)
		require.Equal(t, 300, len(w.served)+len(w.failed))
		for i := 3; i < len(w.at); i++ {
			require.GreaterOrEqual(t, w.at[i]-w.at[i-3], time.Second, "four within a second")
		}
	})
}

// Who reads the error learns how long the wait would be, and how long the deadline is away.
func TestTheTextOfAWaitThatIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(5), 1)
		keyed := ratelimit.Must(ratelimit.New[string](limit, nil))
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(keyed, itself)))
		require.True(t, keyed.Allow("ann", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		const want = "context deadline exceeded: cost 1 must wait for 200ms under token-bucket 5/s burst 1, but the deadline is in 50ms"
		require.EqualError(t, keyed.Wait(ctx, "ann", 1), want)
		require.EqualError(t, stack.Wait(ctx, "ann", 1), want)
		r, err := keyed.Reserve(t.Context(), "ann", 1, time.Second)
		require.NoError(t, err)
		require.EqualError(t, r.Wait(ctx), "context deadline exceeded: the work must wait for 200ms under token-bucket 5/s burst 1, but the deadline is in 50ms")
	})
}
