package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// bubble runs a test on synctest's time, with a limiter built in the bubble.
func bubble(t *testing.T, l ratelimit.Limit, test func(t *testing.T, b *waiters)) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ratelimit.New[string](l, nil)
		require.NoError(t, err)
		test(t, &waiters{limiter: limiter, start: time.Now()})
		synctest.Wait()
	})
}

// waiters records which calls were served, and when.
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
		want  []time.Duration // for costs of 2, 1, 2, 1, 2 at 2 a second
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
		w.wait(t.Context(), "second", 2) // this one fits at 2 s
		time.Sleep(time.Second)
		d, err := w.limiter.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.Equal(t, 2*time.Second, d.RetryAfter)
		w.wg.Wait()
	})
}

func TestCancelledWaiterGivesBackItsBooking(t *testing.T) {
	for _, l := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.SlidingLog(ratelimit.PerSecond(1)),
	} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			bubble(t, l, func(t *testing.T, w *waiters) {
				w.wait(t.Context(), "first", 1)
				before, _ := w.limiter.Peek(context.Background(), "k", 1)
				ctx, cancel := context.WithCancel(t.Context())
				w.wait(ctx, "gone", 1)
				cancel()
				synctest.Wait()
				require.ErrorIs(t, w.failed["gone"], context.Canceled)
				after, _ := w.limiter.Peek(context.Background(), "k", 1)
				require.Equal(t, before, after)
				w.wg.Wait()
			})
		})
	}
}

func TestWaitersBehindACancelledOneMoveUp(t *testing.T) {
	bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), func(t *testing.T, w *waiters) {
		ctx, cancel := context.WithCancel(t.Context())
		w.wait(t.Context(), "at 0", 1)
		w.wait(ctx, "gone", 1)
		w.wait(t.Context(), "at 1", 1)
		w.wait(t.Context(), "at 2", 1)
		cancel()
		w.wait(t.Context(), "at 3", 1)
		w.wg.Wait()
		require.Equal(t, []string{"at 0", "at 1", "at 2", "at 3"}, w.served)
		require.Equal(t, seconds(0, 1, 2, 3), w.at)
	})
}

func TestDeadlineThatComesFirstIsRefusedAtOnce(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerSecond(1)) {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			bubble(t, l, func(t *testing.T, w *waiters) {
				w.wait(t.Context(), "first", 1)
				time.Sleep(time.Millisecond) // from now on the leaky bucket's queue has room
				before, _ := w.limiter.Peek(context.Background(), "k", 1)
				ctx, cancel := context.WithTimeout(t.Context(), before.RetryAfter-1)
				defer cancel()
				err := w.limiter.Wait(ctx, "k", 1)
				require.Equal(t, time.Millisecond, time.Since(w.start), "at once")
				if l.Algorithm == ratelimit.AlgorithmLeakyBucket {
					require.ErrorIs(t, err, ratelimit.ErrLimited)
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				after, _ := w.limiter.Peek(context.Background(), "k", 1)
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
			require.Zero(t, r.limiter.Stats().Keys)
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

// A wait whose context ends during its sleep is reported as one decision, and as failed.
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

// The error's text names the limit, without figures that would differ from error to error.
func TestTheTextOfAWaitThatIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(5), 1)
		keyed := ratelimit.Must(ratelimit.New[string](limit, nil))
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(keyed, itself)))
		require.True(t, keyed.Allow("ann", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		const want = "context deadline exceeded: the call would have to wait for longer than it may, under token-bucket 5/s burst 1"
		require.EqualError(t, keyed.Wait(ctx, "ann", 1), want)
		require.EqualError(t, stack.Wait(ctx, "ann", 1), want)
		r, err := keyed.Reserve(t.Context(), "ann", 1, time.Second)
		require.NoError(t, err)
		require.EqualError(t, r.Wait(ctx), want)
	})
}

// oracle computes when each waiter of a key is served. It replays all spending
// on a new limiter, and books the waiters again, in the order of their arrival.
type oracle struct {
	t       *testing.T
	limit   ratelimit.Limit
	start   time.Time
	spent   []*oracleWaiter // in the order of at
	line    []*oracleWaiter
	limiter *ratelimit.Keyed[string] // built by the last call to now
	mu      sync.Mutex               // orders the goroutines' accesses for the race detector, although they take turns anyway
}

type oracleWaiter struct {
	cost     int
	at       time.Time // when it is served
	promised time.Time // the instant computed at its arrival
	gone     time.Time // when it left
	served   time.Time // when it was really served
	failed   time.Time
}

// handClock shows a time set by hand.
type handClock struct{ now time.Time }

func (c *handClock) Now() time.Duration { return c.now.Sub(time.Unix(0, 0)) }
func (c *handClock) Wall() time.Time    { return c.now }

// now brings the oracle to the present. It records the served waiters, and computes the others' instants again.
func (o *oracle) now() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for len(o.line) > 0 && !o.line[0].at.IsZero() && !o.line[0].at.After(now) {
		o.spent, o.line = append(o.spent, o.line[0]), o.line[1:]
	}
	clock := &handClock{o.start}
	limiter, err := ratelimit.New(o.limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(o.t, err)
	for _, w := range o.spent {
		clock.now = w.at
		require.True(o.t, limiter.Allow("k", w.cost), "the oracle denies what was spent")
	}
	clock.now = now
	for _, w := range o.line {
		r, err := limiter.Reserve(o.t.Context(), "k", w.cost, math.MaxInt64)
		require.NoError(o.t, err)
		require.True(o.t, r.Allowed)
		w.at = now.Add(r.Delay)
		require.False(o.t, !w.promised.IsZero() && w.at.After(w.promised), "later than when it came")
	}
	o.limiter = limiter
}

// yield makes the goroutine's writes visible to the next one.
func (o *oracle) yield() {
	o.mu.Lock()
	defer o.mu.Unlock()
}

// lineLimits returns limits of all algorithms. They have fractions of
// a nanosecond only where the order of arrival does not change these.
func lineLimits() []ratelimit.Limit {
	odd := ratelimit.Rate{Units: 7, Per: time.Second}
	return []ratelimit.Limit{
		ratelimit.TokenBucket(odd, 5), ratelimit.TokenBucket(ratelimit.PerSecond(8), 5), ratelimit.TokenBucket(ratelimit.PerSecond(8), 1), ratelimit.TokenBucket(odd, 1), ratelimit.LeakyBucket(ratelimit.PerSecond(8), 40),
		ratelimit.FixedWindow(odd), ratelimit.SlidingLog(odd), ratelimit.SlidingCounter(odd), ratelimit.Calendar(7, ratelimit.Day("UTC")),
	}
}

func TestWaitersAreServedAsIfDepartedOnesHadNeverCome(t *testing.T) {
	testsize.Extra(t)
	seeds := 60
	switch {
	case testsize.Race: // fewer callers show the race detector the same races, and it takes twenty times as long
		seeds = 2
	case testing.Short():
		seeds = 12
	}
	for _, limit := range lineLimits() {
		for _, mixed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/mixed=%v", limit.Algorithm, mixed), func(t *testing.T) {
				served, peeks := 0, 0
				for seed := range seeds {
					synctest.Test(t, func(t *testing.T) { playLine(t, limit, mixed, uint64(seed), &served, &peeks) })
				}
				require.Greater(t, served, 10*seeds)
				t.Log(served, "served at the exact nanosecond,", peeks, "Peeks equal")
			})
		}
	}
}

func playLine(t *testing.T, limit ratelimit.Limit, mixed bool, seed uint64, served, peeks *int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	unit := time.Second
	if limit.Algorithm == ratelimit.AlgorithmCalendar {
		unit = 24 * time.Hour
	}
	o := &oracle{t: t, limit: limit, start: time.Now()}
	limiter := ratelimit.Must(ratelimit.New[string](limit, nil))
	require.True(t, limiter.Allow("k", 1), "the key is known from now on")
	o.spent = []*oracleWaiter{{cost: 1, at: o.start}}
	cost := 1 + rng.IntN(3)
	var all []*oracleWaiter
	for range 80 {
		o.yield()
		time.Sleep(time.Duration(rng.Int64N(int64(unit) / int64(1+rng.IntN(12)))))
		synctest.Wait()
		o.now()
		if mixed {
			cost = 1 + rng.IntN(min(4, limit.Capacity()))
		}
		switch cost := min(cost, limit.Capacity()); {
		case rng.IntN(6) == 0 && limit.Algorithm != ratelimit.AlgorithmLeakyBucket:
			if limiter.Allow("k", cost) {
				require.Empty(t, o.line, "Allow has overtaken the line")
				o.spent = append(o.spent, &oracleWaiter{cost: cost, at: time.Now()})
			}
		case rng.IntN(6) == 0:
			want, err := o.limiter.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			got, err := limiter.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, want, got)
			*peeks++
		default:
			w := &oracleWaiter{cost: cost}
			o.line = append(o.line, w)
			if limit.Algorithm == ratelimit.AlgorithmLeakyBucket && !o.limiter.Allow("k", cost) {
				o.line = o.line[:len(o.line)-1] // the queue is full, so the call is not in line
				require.ErrorIs(t, limiter.Wait(t.Context(), "k", cost), ratelimit.ErrLimited)
				continue
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if rng.IntN(3) > 0 {
				patience := time.Duration(rng.Int64N(4 * int64(unit)))
				w.gone = time.Now().Add(patience)
				time.AfterFunc(patience, func() {
					o.now()
					if i := slices.Index(o.line, w); i >= 0 {
						o.line = slices.Delete(o.line, i, i+1)
					}
					cancel()
					synctest.Wait()
					o.now()
				})
			}
			go func() {
				if limiter.Wait(ctx, "k", cost) != nil {
					w.failed = time.Now()
				} else {
					w.served = time.Now()
				}
			}()
			synctest.Wait()
			o.now()
			w.promised, all = w.at, append(all, w)
		}
	}
	for len(o.line) > 0 {
		left := time.Until(o.line[0].at)
		o.yield()
		time.Sleep(max(1, left))
		synctest.Wait()
		o.now()
	}
	for i, w := range all {
		if w.failed.IsZero() {
			require.Equal(t, w.at, w.served, "waiter %d", i)
			*served++
		} else {
			require.Equal(t, w.gone, w.failed, "waiter %d", i)
			require.True(t, w.at.After(w.gone), "waiter %d has left although it was served", i)
		}
	}
	require.Zero(t, limiter.Stats().Waiting)
}

// served returns the cost served per unit of time. Callers arrive evenly, at a multiple
// of the limit of 20 per unit, and leave after 2 units. Other calls do not wait.
func served(t *testing.T, limit ratelimit.Limit, unit time.Duration, offered float64, mixed bool) (perUnit float64) {
	synctest.Test(t, func(t *testing.T) {
		limiter := ratelimit.Must(ratelimit.New[string](limit, nil))
		var passed atomic.Int64
		rng := rand.New(rand.NewPCG(1, 1))
		const warm, span = 5, 20
		begin, end := time.Now().Add(warm*unit), time.Now().Add((warm+span)*unit)
		count := func(cost int) {
			if now := time.Now(); !now.Before(begin) && now.Before(end) {
				passed.Add(int64(cost))
			}
		}
		done := t.Context()
		mean := 1.0
		if mixed {
			mean = 2
		}
		gap := time.Duration(float64(unit) / 20 * mean / offered)
		for i := 0; time.Now().Before(end); i++ {
			cost := 1
			if mixed {
				cost = 1 + rng.IntN(3)
			}
			go func() {
				ctx, cancel := context.WithCancel(done)
				defer time.AfterFunc(2*unit, cancel).Stop()
				defer cancel()
				if limiter.Wait(ctx, "k", cost) == nil {
					count(cost)
				}
			}()
			if i%7 == 0 && limit.Algorithm != ratelimit.AlgorithmLeakyBucket && limiter.Allow("k", 1) {
				count(1)
			}
			time.Sleep(gap)
		}
		time.Sleep(3 * unit)
		synctest.Wait()
		require.Zero(t, limiter.Stats().Waiting)
		perUnit = float64(passed.Load()) / span
	})
	return perUnit
}

func TestTheRateIsServedWhicheverWaitersLeave(t *testing.T) {
	second := ratelimit.PerSecond(20)
	for _, tt := range []struct {
		limit ratelimit.Limit
		unit  time.Duration
		least float64 // the minimum share of the rate, for equal costs
		mixed float64
	}{
		{ratelimit.TokenBucket(second, 1), time.Second, .95, 0}, // a bucket of 1 admits no cost above 1
		{ratelimit.TokenBucket(second, 5), time.Second, .95, .95},
		{ratelimit.TokenBucket(second, 100), time.Second, .95, .95},
		{ratelimit.LeakyBucket(second, 100), time.Second, .95, .95},
		{ratelimit.SlidingCounter(second), time.Second, .95, .90},
		{ratelimit.FixedWindow(second), time.Second, .90, .90},
		{ratelimit.SlidingLog(second), time.Second, .90, .90},
		{ratelimit.Calendar(20, ratelimit.Day("UTC")), 24 * time.Hour, .90, .90},
	} {
		for _, offered := range []float64{1.05, 1.5, 2, 10} {
			for _, mixed := range []bool{false, true} {
				least := tt.least
				if mixed {
					least = tt.mixed
				}
				if least == 0 || testing.Short() && offered != 2 {
					continue
				}
				t.Run(fmt.Sprintf("%v, burst %d/%v×/mixed=%v", tt.limit.Algorithm, tt.limit.Burst, offered, mixed), func(t *testing.T) {
					got := served(t, tt.limit, tt.unit, offered, mixed)
					t.Logf("%.2f of 20", got)
					require.GreaterOrEqual(t, got, least*20)
				})
			}
		}
	}
}

func TestAStormThatLeavesDelaysNoOtherCaller(t *testing.T) {
	bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(20), 1), func(t *testing.T, w *waiters) {
		storm, leave := context.WithCancel(t.Context())
		for range 1000 {
			w.wg.Go(func() { _ = w.limiter.Wait(storm, "k", 1) })
		}
		time.Sleep(2 * time.Second)
		leave()
		for i := range 5 {
			w.wait(t.Context(), strconv.Itoa(i), 1)
		}
		w.wg.Wait()
		require.Equal(t, []time.Duration{2050 * ms, 2100 * ms, 2150 * ms, 2200 * ms, 2250 * ms}, w.at)
	})
}

func TestReservationsAmongTheWaitersKeepTheirInstants(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(4), 4), ratelimit.SlidingLog(ratelimit.PerSecond(4)),
		ratelimit.FixedWindow(ratelimit.PerSecond(4)), ratelimit.SlidingCounter(ratelimit.PerSecond(4)),
	} {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			bubble(t, limit, func(t *testing.T, w *waiters) {
				gone, leave := context.WithCancel(t.Context())
				w.wait(t.Context(), "first", 4)
				w.wait(gone, "gone", 3)
				w.wait(t.Context(), "before", 2)
				before, err := w.limiter.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				r, err := w.limiter.Reserve(t.Context(), "k", 3, time.Hour)
				require.NoError(t, err)
				w.wait(t.Context(), "behind", 1)
				booked, err := w.limiter.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				leave()
				w.wg.Wait()
				require.Equal(t, []string{"first", "before", "behind"}, w.served)
				require.Less(t, w.at[1], before.RetryAfter, "the one before the reservation has moved up")
				require.GreaterOrEqual(t, w.at[2], r.Delay, "the one behind it has not overtaken it")
				require.LessOrEqual(t, w.at[2], booked.RetryAfter)
			})
		})
	}
}

func TestMaxWaitingBoundsTheCallsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{MaxWaiting: 2}))
		require.NoError(t, l.Wait(t.Context(), "k", 1), "nobody has to wait")
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { require.ErrorIs(t, l.Wait(ctx, "k", 1), context.Canceled) })
		}
		synctest.Wait()
		require.Equal(t, 2, l.Stats().Waiting)
		before, _ := l.Peek(context.Background(), "k", 1)
		start := time.Now()
		err := l.Wait(t.Context(), "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrLimited)
		require.ErrorContains(t, err, "2 calls wait, which Options.MaxWaiting allows")
		r, err := l.Reserve(t.Context(), "k", 1, time.Hour)
		require.NoError(t, err)
		require.ErrorIs(t, r.Wait(t.Context()), ratelimit.ErrLimited)
		after, _ := l.Peek(context.Background(), "k", 1)
		require.Equal(t, before, after, "neither has spent anything")
		require.Zero(t, time.Since(start), "at once")
		require.NoError(t, l.Wait(t.Context(), "other", 1), "it has not to wait")
		leave()
		wg.Wait()
		require.Zero(t, l.Stats().Waiting)
		require.NoError(t, l.Wait(t.Context(), "k", 1))
	})
	_, err := ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{MaxWaiting: -1})
	require.EqualError(t, err, "ratelimit: Options.MaxWaiting is -1, want 0 for no maximum, or more")
}

func TestAReservationThatWaitsMovesUp(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), ratelimit.LeakyBucket(ratelimit.PerSecond(1), 9), ratelimit.SlidingLog(ratelimit.PerSecond(1)),
	} {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			bubble(t, limit, func(t *testing.T, w *waiters) {
				require.True(t, w.limiter.Allow("k", 1))
				ctx, leave := context.WithCancel(t.Context())
				w.wait(ctx, "gone", 1)
				r, err := w.limiter.Reserve(t.Context(), "k", 1, time.Hour)
				require.NoError(t, err)
				require.Equal(t, 2*time.Second, r.Delay)
				w.wg.Go(func() { w.done("reserved", r.Wait(t.Context())) })
				synctest.Wait()
				w.wait(t.Context(), "last", 1)
				leave()
				w.wg.Wait()
				require.Equal(t, []string{"reserved", "last"}, w.served)
				require.Equal(t, seconds(1, 2), w.at)
				require.NoError(t, r.Wait(t.Context()), "once more, at once")
				require.Equal(t, 2*time.Second, time.Since(w.start))
			})
		})
	}
}

func TestAReservationThatIsSettledWhileItWaitsWaitsNoLonger(t *testing.T) {
	for _, actual := range []int{0, 1, 2} {
		bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 2), func(t *testing.T, w *waiters) {
			require.True(t, w.limiter.Allow("k", 2))
			r, err := w.limiter.Reserve(t.Context(), "k", 2, time.Hour)
			require.NoError(t, err)
			w.wg.Go(func() { w.done("settled", r.Wait(t.Context())) })
			synctest.Wait()
			w.wait(t.Context(), "behind", 1)
			require.NoError(t, r.Settle(actual))
			synctest.Wait()
			w.mu.Lock()
			require.Equal(t, []string{"settled"}, w.served)
			require.Zero(t, w.at[0])
			w.mu.Unlock()
			w.wg.Wait()
			require.Zero(t, w.limiter.Stats().Waiting)
			require.Equal(t, seconds(0, float64(1+actual)), w.at, "the one behind waits for the real cost")
		})
	}
}

func TestAFreshBudgetGoesToTheLineFirst(t *testing.T) {
	for _, limit := range lineLimits() {
		t.Run(limit.String(), func(t *testing.T) {
			bubble(t, limit, func(t *testing.T, w *waiters) {
				capacity := limit.Capacity()
				require.True(t, w.limiter.Allow("k", capacity))
				if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
					time.Sleep(time.Second) // by then the queue has room
				}
				ctx, leave := context.WithCancel(t.Context())
				w.wait(ctx, "gone", 1)
				leave()
				for i := range capacity {
					w.wait(t.Context(), strconv.Itoa(i), 1)
				}
				require.NoError(t, w.limiter.Reset(context.Background(), "k"))
				synctest.Wait()
				w.wait(t.Context(), "new", 1)
				reset := time.Since(w.start)
				w.wg.Wait()
				if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
					return
				}
				require.Len(t, w.served, capacity+1)
				for i := range capacity {
					require.NotEqual(t, "new", w.served[i])
					require.Equal(t, reset, w.at[i], "the fresh budget goes to the line")
				}
				require.Equal(t, "new", w.served[capacity])
				require.Greater(t, w.at[capacity], reset, "the newcomer waits")
				require.Zero(t, w.limiter.Stats().Waiting)
			})
		})
	}
}

func TestADebtDelaysTheCallsThatWait(t *testing.T) {
	bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), func(t *testing.T, w *waiters) {
		require.True(t, w.limiter.Allow("k", 1))
		w.wait(t.Context(), "first", 1)
		w.wait(t.Context(), "second", 1)
		require.NoError(t, w.limiter.Adjust(t.Context(), "k", 3))
		d, err := w.limiter.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 6*time.Second, d.RetryAfter, "behind both, and behind the debt")
		w.wg.Wait()
		require.Equal(t, []string{"first", "second"}, w.served)
		require.Equal(t, seconds(4, 5), w.at)
	})
}
