package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
)

// caller is a call to Acquire in its own goroutine, in a bubble.
type caller struct {
	name   string
	cancel context.CancelCauseFunc
	permit inflight.Permit
	err    error
	done   bool
}

// line starts callers one after another: each waits before the next one comes. It records the order of service.
type line struct {
	l      *inflight.Limiter[string]
	mu     sync.Mutex // guards served
	served []string
}

func (q *line) send(name, key string, n int) *caller {
	c := &caller{name: name}
	var ctx context.Context
	ctx, c.cancel = context.WithCancelCause(context.Background())
	go func() {
		c.permit, c.err = q.l.Acquire(ctx, key, n)
		if c.err == nil {
			q.mu.Lock()
			q.served = append(q.served, name)
			q.mu.Unlock()
		}
		c.done = true
	}()
	synctest.Wait()
	return c
}

// release gives a served caller's permit back, and waits until the others have gone on.
func (c *caller) release() {
	c.permit.Release()
	synctest.Wait()
}

func (c *caller) giveUp() {
	c.cancel(nil)
	synctest.Wait()
}

func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 2, &options{MaxQueue: 10})
		q := &line{l: l}
		large, small := q.send("holder", "a", 2), []*caller{}
		big := q.send("big", "a", 2)
		for i := range 3 {
			small = append(small, q.send(fmt.Sprint("small ", i), "a", 1))
		}
		assert.Equal(t, 4, stats(t, l, "a").Queued)
		refused(t, l, "a", 1)
		large.release()
		assert.Equal(t, []string{"holder", "big"}, q.served, "a big request is not overtaken by small ones")
		refused(t, l, "a", 1)
		big.release()
		assert.True(t, small[0].done && small[1].done && !small[2].done)
		small[0].release()
		small[1].release()
		small[2].release()
		assert.Len(t, q.served, 5)
		assert.Zero(t, stats(t, l, "a").InFlight)
	})
}

func TestTryAcquirePassesNoWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 3, &options{MaxQueue: 10})
		q := &line{l: l}
		a := q.send("holder", "a", 2)
		b := q.send("waits for three", "a", 3)
		refused(t, l, "a", 1) // one unit is free, but a new caller must not take it
		a.release()
		assert.True(t, b.done)
		b.release()
		take(t, l, "a", 3).Release()
	})
}

func TestFullQueueShedsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{MaxQueue: 2})
		q := &line{l: l}
		held := take(t, l, "a", 1)
		first, second := q.send("first", "a", 1), q.send("second", "a", 1)
		third := q.send("third", "a", 1)
		assert.ErrorIs(t, third.err, ratelimit.ErrLimited)
		assert.ErrorContains(t, third.err, "queue is full")
		assert.False(t, first.done || second.done)
		other := q.send("another key", "b", 1)
		assert.NoError(t, other.err, "a full queue is its own key's")
		assert.EqualValues(t, 1, stats(t, l, "a").Shed)
		held.Release()
		synctest.Wait()
		first.release()
		second.release()
	})
}

func TestAcquireWithoutAQueueFailsAtOnce(t *testing.T) {
	l := newLimiter(t, 1, nil)
	p, err := l.Acquire(context.Background(), "a", 1)
	require.NoError(t, err)
	_, err = l.Acquire(context.Background(), "a", 1)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	p.Release()
}

func TestAcquireWithAContextThatHasEnded(t *testing.T) {
	l := newLimiter(t, 1, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("the client has left"))
	_, err := l.Acquire(ctx, "a", 1)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "inflight: gave up")
	assert.ErrorContains(t, err, "the client has left")
	assert.Zero(t, l.Totals().Keys)
}

func TestDeadlineEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{MaxQueue: 1})
		take(t, l, "a", 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := l.Acquire(ctx, "a", 1)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Zero(t, stats(t, l, "a").Queued)
	})
}

// A cancelled wait keeps no permits. (failsafe-go v0.9.8 keeps them.)
func TestCallerThatGivesUpKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 3, &options{MaxQueue: 10, Total: 3})
		q := &line{l: l}
		held := q.send("holder", "a", 2)
		big := q.send("big", "a", 3)
		middle, last := q.send("middle", "a", 1), q.send("last", "a", 1)
		middle.giveUp()
		assert.ErrorIs(t, middle.err, context.Canceled)
		assert.False(t, last.done)
		big.giveUp()
		assert.ErrorIs(t, big.err, context.Canceled)
		assert.True(t, last.done, "the room that big has waited for goes to the next")
		assert.Equal(t, 3, stats(t, l, "a").InFlight)
		held.release()
		last.release()
		take(t, l, "a", 3).Release()
	})
}

// A waiter may give up at the instant when it gets its permit. Then the
// next waiter gets the permit, or the caller does. It is never lost.
func TestPermitPassesOnWhenItsWaiterGivesUpAtTheSameInstant(t *testing.T) {
	l := newLimiter(t, 1, &options{MaxQueue: 4})
	lost, got := 0, 0
	for range 2000 {
		held := take(t, l, "a", 1)
		ctx, cancel := context.WithCancel(context.Background())
		results := make(chan error, 2)
		wait := func(ctx context.Context) {
			p, err := l.Acquire(ctx, "a", 1)
			p.Release()
			results <- err
		}
		go wait(ctx)
		for stats(t, l, "a").Queued < 1 {
			runtime.Gosched()
		}
		go wait(context.Background())
		inParallel(2, func(i int) { [...]func(){held.Release, cancel}[i]() })
		for range 2 {
			if err := <-results; err != nil {
				assert.ErrorIs(t, err, context.Canceled)
				lost++
			} else {
				got++
			}
		}
		require.Zero(t, stats(t, l, "a").InFlight)
	}
	t.Logf("%d gave up, %d were served", lost, got)
}

func TestRaisedLimitWakesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{MaxQueue: 10})
		q := &line{l: l}
		take(t, l, "a", 1)
		one, two, three := q.send("1", "a", 1), q.send("2", "a", 1), q.send("3", "a", 1)
		require.NoError(t, l.SetLimit(3))
		synctest.Wait()
		assert.True(t, one.done && two.done && !three.done)
		one.release()
		two.release()
		three.release()
	})
}

func TestLoweredLimitCutsNoWorkOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 4, &options{MaxQueue: 10})
		q := &line{l: l}
		held := []inflight.Permit{take(t, l, "a", 1), take(t, l, "a", 1), take(t, l, "a", 1), take(t, l, "a", 1)}
		require.NoError(t, l.SetLimit(2))
		assert.Equal(t, 4, stats(t, l, "a").InFlight)
		next := q.send("next", "a", 1)
		for i, p := range held {
			assert.Equal(t, i > 2, next.done, "%d were released: no new one until there is room", i)
			p.Release()
			synctest.Wait()
		}
		next.release()
	})
}

func TestLoweredLimitEndsWaitersThatNeedMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 5, &options{MaxQueue: 10})
		q := &line{l: l}
		held := take(t, l, "a", 2)
		five, two := q.send("five", "a", 5), q.send("two", "a", 2)
		require.NoError(t, l.SetLimit(4))
		synctest.Wait()
		assert.ErrorIs(t, five.err, ratelimit.ErrExceedsLimit)
		assert.True(t, two.done, "and lets in those behind them")
		assert.NoError(t, two.err)
		held.Release()
		two.release()
		assert.Error(t, l.SetLimit(0))
		assert.Error(t, l.SetLimit(-1))
		assert.Equal(t, 4, stats(t, l, "a").Limit, "a limit that is refused changes nothing")
	})
}

func TestBlockedKeyEndsItsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := map[string]int{}
		l := newLimiter(t, 1, &options{MaxQueue: 10, LimitFor: func(key string) int { return limits[key] }})
		q := &line{l: l}
		held := take(t, l, "a", 1)
		c := q.send("waiting", "a", 1)
		limits["a"] = -1
		l.Refresh("b", "a")
		synctest.Wait()
		assert.ErrorIs(t, c.err, ratelimit.ErrBlocked)
		held.Release()
		_, err := l.TryAcquire("a", 1)
		assert.ErrorIs(t, err, ratelimit.ErrBlocked)
		assert.Zero(t, stats(t, l, "a").Limit)
		limits["a"] = 0
		l.Refresh()
		take(t, l, "a", 1)
	})
}

func TestStatsContainRecentWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{MaxQueue: 10})
		q := &line{l: l}
		held := take(t, l, "a", 1)
		first := q.send("first", "a", 1)
		time.Sleep(8 * time.Second)
		held.Release()
		synctest.Wait()
		assert.Equal(t, 8*time.Second, stats(t, l, "a").Wait)
		second := q.send("second", "a", 1)
		time.Sleep(16 * time.Second)
		first.release()
		assert.Equal(t, 9*time.Second, stats(t, l, "a").Wait)
		second.release()
		take(t, l, "a", 1).Release()
		assert.Equal(t, 9*time.Second, stats(t, l, "a").Wait, "who does not queue does not count")
	})
}

// A thousand callers have deadlines of 0 to 1 ms, and limits change meanwhile. All permits come back, and no waiter is left.
func TestAThousandCallersWithShortDeadlinesLeaveNothingBehind(t *testing.T) {
	for _, opts := range []inflight.Options[int]{
		{Adaptive: inflight.Learn(nil), MaxQueue: 50},
		{Shared: inflight.Learn(&inflight.LearnOptions{Timeout: time.Millisecond}), Total: 30, MaxQueue: 50, MaxWaiting: 100, MaxKeys: 5,
			Weight: func(k int) int { return k << 30 }, Priority: func(k int) int { return k % 2 }},
		{Total: 7, MaxQueue: 1000, MaxKeys: 2},
	} {
		l, err := inflight.New(10, &opts)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 1))
				for range 20 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(1000))*time.Microsecond)
					p, err := l.Acquire(ctx, rng.IntN(8), rng.IntN(4)-rng.IntN(2))
					if err == nil {
						if rng.IntN(4) == 0 {
							time.Sleep(time.Duration(rng.IntN(50)) * time.Microsecond)
						}
						p.Done(inflight.Outcome(rng.IntN(6)))
						p.Done(inflight.Dropped)
					}
					cancel()
					switch rng.IntN(100) {
					case 0:
						_ = l.SetLimit(rng.IntN(12) - 1)
					case 1:
						l.Refresh()
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, l.SetLimit(10))
		totals := l.Totals()
		assert.Zero(t, totals.InFlight)
		assert.Zero(t, totals.Queued)
		for k := range 8 {
			s, _ := l.Stats(k)
			assert.Zero(t, s.InFlight, "%d", k)
		}
	}
}
