package inflight_test

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// learnHold lets some of a key's work succeed after d while others wait, so that fixed limits learn its time, too.
func learnHold(t *testing.T, l *inflight.Limiter[string], d time.Duration) {
	for range 3 {
		held := take(t, l, "a", 1)
		done := make(chan struct{})
		for range 2 {
			go func() {
				p, err := l.Acquire(context.Background(), "a", 1)
				assert.NoError(t, err)
				time.Sleep(d)
				p.Release()
				done <- struct{}{}
			}()
			synctest.Wait()
		}
		time.Sleep(d)
		held.Release()
		<-done
		<-done
	}
}

// If a caller's deadline is too close for its key's work, it is
// refused at once. Work longer than half the deadline is still served.
func TestAWaiterIsRefusedWhenItsWorkWouldEndTooLate(t *testing.T) {
	for kind, o := range map[string]*options{
		"fixed": {MaxQueue: 5}, "Total": {MaxQueue: 5, Total: 1}, "adaptive": {MaxQueue: 5, Adaptive: inflight.Learn(&inflight.LearnOptions{Start: 1})},
	} {
		for name, row := range map[string]struct {
			deadline time.Duration
			freed    time.Duration // when the slot is free
			until    time.Duration // when Acquire returns
			err      string        // or "" if the work, which takes 600 ms, may begin
		}{
			"too late at once":     {500 * time.Millisecond, 900 * time.Millisecond, 0, "the context ends before the work could"},
			"early enough":         {time.Second, 300 * time.Millisecond, 300 * time.Millisecond, ""},
			"too late at its turn": {time.Second, 500 * time.Millisecond, 500 * time.Millisecond, "the context ends before the work could"},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLimiter(t, 1, o)
					learnHold(t, l, 600*time.Millisecond)
					time.AfterFunc(row.freed, take(t, l, "a", 1).Release)
					start := time.Now()
					ctx, cancel := context.WithTimeout(context.Background(), row.deadline)
					defer cancel()
					p, err := l.Acquire(ctx, "a", 1)
					assert.Equal(t, row.until, time.Since(start))
					if row.err == "" {
						require.NoError(t, err)
						p.Release()
					} else {
						assert.ErrorIs(t, err, ratelimit.ErrLimited)
						assert.ErrorContains(t, err, row.err)
					}
					time.Sleep(time.Second)
					assert.Zero(t, stats(t, l, "a").InFlight)
					assert.Zero(t, stats(t, l, "a").Queued)
				})
			})
		}
	}
}

// A bound of the wait, such as a middleware's MaxWait, does not bound the work
// after it. Work is refused only if it would last beyond the caller's deadline.
func TestABoundOfTheWaitIsNoDeadlineOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{MaxQueue: 5})
		learnHold(t, l, 5*time.Second)
		for _, test := range []struct {
			frees, deadline time.Duration
			ok              bool
		}{{400 * time.Millisecond, time.Minute, true}, {600 * time.Millisecond, time.Minute, false}, {400 * time.Millisecond, 5300 * time.Millisecond, false}, {400 * time.Millisecond, 5500 * time.Millisecond, true}} {
			held := take(t, l, "a", 1)
			time.AfterFunc(test.frees, held.Release)
			ctx, cancel := context.WithTimeout(context.Background(), test.deadline)
			waiting, end := wait.Within(ctx, time.Second)
			p, err := l.Acquire(waiting, "a", 1)
			end()
			cancel()
			if !test.ok {
				assert.ErrorIs(t, err, ratelimit.ErrLimited)
				continue
			}
			require.NoError(t, err)
			time.Sleep(5 * time.Second)
			p.Release()
		}
	})
}

// A queue without lost callers serves the oldest first, however long the queue lasts. From the first lost
// caller until the queue is empty, the newest goes first. If the queue is full, it replaces the oldest.
func TestTheNewestGoesFirstFromTheFirstLostWaiterUntilTheQueueIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := line{l: newLimiter(t, 1, &options{MaxQueue: 3})}
		a := q.send("a", "k", 1)
		b, c, d := q.send("b", "k", 1), q.send("c", "k", 1), q.send("d", "k", 1)
		full := q.send("full", "k", 1)
		assert.ErrorIs(t, full.err, ratelimit.ErrLimited)
		a.release()
		b.release()
		assert.Equal(t, []string{"a", "b", "c"}, q.served)

		e, f := q.send("e", "k", 1), q.send("f", "k", 1)
		e.giveUp()
		g := q.send("g", "k", 1)
		h := q.send("h", "k", 1)
		assert.ErrorIs(t, d.err, ratelimit.ErrLimited, "the oldest makes room")
		c.release()
		h.release()
		g.release()
		f.release()
		assert.Equal(t, []string{"a", "b", "c", "h", "g", "f"}, q.served)

		i := q.send("i", "k", 1)
		j, k := q.send("j", "k", 1), q.send("k", "k", 1)
		i.release()
		j.release()
		k.release()
		assert.Equal(t, []string{"i", "j", "k"}, q.served[6:], "the queue has been empty")
	})
}

// Under a shared adaptive limit, the newest goes first, too. Here, a waiter for one unit does not collect units.
func TestTheNewestGoesFirstUnderASharedLimitToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := line{l: newLimiter(t, 1, &options{MaxQueue: 5, Total: 1, Shared: func() inflight.Algorithm { return steady(1) }})}
		a, lost := q.send("a", "k", 1), q.send("lost", "k", 1)
		b, c, d := q.send("b", "k", 1), q.send("c", "k", 1), q.send("d", "k", 1)
		lost.giveUp()
		a.release()
		d.release()
		c.release()
		b.release()
		assert.Equal(t, []string{"a", "d", "c", "b"}, q.served)
	})
}

// A large request is served once it is the only one, although smaller and newer ones pass it.
func TestALargeRequestIsServedThoughTheNewestGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := line{l: newLimiter(t, 3, &options{MaxQueue: 5})}
		a := q.send("a", "k", 3)
		large, lost, small := q.send("large", "k", 3), q.send("lost", "k", 1), q.send("small", "k", 1)
		lost.giveUp()
		a.release()
		assert.Equal(t, []string{"a", "small"}, q.served)
		small.release()
		assert.Equal(t, []string{"a", "small", "large"}, q.served)
		large.release()
	})
}

// The load is 1.1 or 1.5 times the capacity, and work takes 50 or
// 200 ms. Nearly all the capacity goes to callers still waiting.
func TestQueuesServeCallersWhoAreStillThere(t *testing.T) {
	for _, test := range []struct {
		servers int
		work    time.Duration
	}{{10, 50 * time.Millisecond}, {40, 200 * time.Millisecond}} {
		for _, load := range []float64{1.1, 1.5} {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, test.servers, &options{MaxQueue: 500})
				gap := time.Duration(float64(test.work) / float64(test.servers) / load)
				good, start := make(chan struct{}, 100_000), time.Now()
				for time.Since(start) < 20*time.Second {
					go func() {
						ctx, cancel := context.WithTimeout(context.Background(), time.Second)
						defer cancel()
						p, err := l.Acquire(ctx, "k", 1)
						if err != nil {
							return
						}
						time.Sleep(test.work)
						p.Release()
						if ctx.Err() == nil {
							good <- struct{}{}
						}
					}()
					time.Sleep(gap)
				}
				time.Sleep(5 * time.Second)
				part := float64(len(good)) * test.work.Seconds() / float64(test.servers) / 20
				assert.Greater(t, part, 0.94, "%d × %v, load %v", test.servers, test.work, load)
			})
		}
	}
}

// A limit has fallen, and a lower priority's units fill it. A higher priority is
// admitted nevertheless, up to Total, and the lower one leaves the queue to it.
func TestAHigherPriorityExceedsALimitThatALowerOneHolds(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, _ := script(10, 4, 4, 4)
	l := newLimiter(t, 12, &options{Total: 12, Shared: adaptive, Clock: clock, Priority: func(key string) int { return map[string]int{"page": 1}[key] }})
	var batch []inflight.Permit
	for range 10 {
		batch = append(batch, take(t, l, "batch", 1))
	}
	refused(t, l, "batch", 1)
	for range 2 {
		take(t, l, "page", 1)
	}
	refused(t, l, "page", 1) // Total is reached
	assert.Equal(t, 12, l.Totals().InFlight)
	for _, p := range batch[:3] {
		p.Done(inflight.Ignored)
	}
	refused(t, l, "batch", 3)
	take(t, l, "page", 1)
}

// Answers of very different lengths do not make the backend slow: the
// limit learns from the time per amount. Senseless amounts do not count.
func TestAmountsMakeALongAnswerNoSlowOne(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(1000, 1000, 1000, 1000)
	l := newLimiter(t, 1000, &options{Adaptive: adaptive, Clock: clock})
	window := func(tokens float64) {
		var permits []inflight.Permit
		for range 20 {
			permits = append(permits, take(t, l, "a", 1))
		}
		clock.Advance(time.Duration(tokens) * 10 * time.Millisecond)
		for _, p := range permits {
			p.DoneAmount(inflight.Success, tokens)
		}
	}
	window(100)
	window(1000)
	require.Len(t, *samples, 2)
	for _, s := range *samples {
		assert.InDelta(t, time.Second, s.RTT, float64(time.Microsecond))
	}
	assert.Equal(t, 10*time.Second, (*samples)[1].Served)
}

func TestAnAmountThatCannotBeLeavesTheTimeAsItIs(t *testing.T) {
	for _, amount := range []float64{0, -1, math.NaN(), math.Inf(1), math.MaxFloat64} {
		t.Run(fmt.Sprint(amount), func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			adaptive, samples := script(1000, 1000, 1000)
			l := newLimiter(t, 1000, &options{Adaptive: adaptive, Clock: clock})
			for range 20 {
				p := take(t, l, "a", 1)
				clock.Advance(10 * time.Millisecond)
				p.DoneAmount(inflight.Success, amount)
			}
			require.Len(t, *samples, 1)
			assert.Equal(t, 10*time.Millisecond, (*samples)[0].RTT)
		})
	}
}

// Ignored streams do not change other work's times, even if they began before the window.
func TestIgnoredWorkDoesNotRaiseTheMean(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(100, 100, 100, 100, 100, 100)
	l := newLimiter(t, 100, &options{Adaptive: adaptive, Clock: clock})
	finish(t, l, clock, 20, 100*time.Millisecond, inflight.Success)
	var streams []inflight.Permit
	for range 10 {
		streams = append(streams, take(t, l, "a", 1))
	}
	finish(t, l, clock, 20, 100*time.Millisecond, inflight.Success)
	var calls []inflight.Permit
	for range 20 {
		calls = append(calls, take(t, l, "a", 1))
	}
	clock.Advance(50 * time.Millisecond)
	for _, p := range streams {
		p.Done(inflight.Ignored)
	}
	clock.Advance(50 * time.Millisecond)
	for _, p := range calls {
		p.Done(inflight.Success)
	}
	require.NotEmpty(t, *samples)
	assert.Equal(t, 100*time.Millisecond, (*samples)[len(*samples)-1].RTT)
}

// While ignored work is in flight, it does not count in the learnt limit or in a sample. It counts in the upper bound.
func TestIgnoredWorkLeavesTheLearntLimitToOthersWhileItIsInFlight(t *testing.T) {
	for name, shared := range map[string]bool{"per key": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			adaptive, samples := script(20, 20, 20, 20, 20, 20)
			o := &options{Clock: clock, Adaptive: adaptive}
			if shared {
				o = &options{Clock: clock, Shared: adaptive, Total: 50}
			}
			l := newLimiter(t, 50, o)
			finish(t, l, clock, 20, 100*time.Millisecond, inflight.Success)
			var streams []inflight.Permit
			for range 40 {
				p := take(t, l, "a", 1)
				p.Ignore()
				p.Ignore()
				streams = append(streams, p)
			}
			assert.Equal(t, 40, stats(t, l, "a").InFlight)
			for range 3 {
				finish(t, l, clock, 10, 100*time.Millisecond, inflight.Success)
				refused(t, l, "a", 11)
			}
			streams[0].Release()
			streams[0].Release()
			streams[0].Ignore()
			finish(t, l, clock, 11, 50*time.Millisecond, inflight.Success)
			for _, p := range streams[1:] {
				p.DoneAmount(inflight.Success, 7)
			}
			assert.Zero(t, stats(t, l, "a").InFlight)
			finish(t, l, clock, 20, 100*time.Millisecond, inflight.Success)
			require.NotEmpty(t, *samples)
			for _, s := range *samples {
				assert.LessOrEqual(t, s.InFlight, 20)
				assert.LessOrEqual(t, s.Mean, 20.0)
				assert.LessOrEqual(t, s.RTT, 100*time.Millisecond)
				assert.LessOrEqual(t, s.Served, 100*time.Millisecond)
				assert.Zero(t, s.Drops)
			}
		})
	}
	inflight.Permit{}.Ignore()
	take(t, newLimiter(t, 1, nil), "a", 1).Ignore()
}

// When work in flight is ignored, a waiter is admitted. A stream that ends as Dropped counts as a drop.
func TestIgnoredWorkMakesRoomAndItsDropsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		adaptive, samples := script(1, 9)
		l := newLimiter(t, 9, &options{Adaptive: adaptive, MaxQueue: 1})
		stream := take(t, l, "a", 1)
		entered := make(chan inflight.Permit, 1)
		go func() {
			p, err := l.Acquire(context.Background(), "a", 1)
			assert.NoError(t, err)
			entered <- p
		}()
		synctest.Wait()
		assert.Empty(t, entered)
		stream.Ignore()
		(<-entered).Release()
		stream.Done(inflight.Dropped)
		for range 20 {
			p := take(t, l, "a", 1)
			time.Sleep(10 * time.Millisecond)
			p.Release()
		}
		require.NotEmpty(t, *samples)
		assert.NotZero(t, (*samples)[0].Drops)
	})
}

// Open streams do not lower the limit for the calls beside them.
func TestStreamsDoNotLowerALimit(t *testing.T) {
	goodput := func(streams int) (n int) {
		synctest.Test(t, func(t *testing.T) {
			l, err := inflight.Protect[string](nil)
			require.NoError(t, err)
			backend := make(chan struct{}, 20)
			start := time.Now()
			for range streams {
				go func() {
					for time.Since(start) < time.Minute {
						p, err := l.TryAcquire("a", 1)
						if err == nil {
							p.Ignore()
						}
						time.Sleep(10 * time.Second)
						p.Done(inflight.Ignored)
					}
				}()
			}
			var done atomic.Int64
			for time.Since(start) < time.Minute {
				go func() {
					p, err := l.TryAcquire("b", 1)
					if err != nil {
						return
					}
					backend <- struct{}{}
					time.Sleep(50 * time.Millisecond)
					<-backend
					p.Release()
					done.Add(1)
				}()
				time.Sleep(2 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			n = int(done.Load())
		})
		return n
	}
	without, with := goodput(0), goodput(200)
	t.Logf("%d calls a minute, %d beside 200 streams", without, with)
	assert.Greater(t, float64(with), 0.97*float64(without))
}

// Protect needs no figures. The caller may set all options but two.
func TestProtectIsASharedLimitWithBoundedQueues(t *testing.T) {
	l, err := inflight.Protect[string](nil)
	require.NoError(t, err)
	assert.Equal(t, 20, l.Totals().Limit)
	for range 20 {
		take(t, l, "a", 1)
	}
	refused(t, l, "b", 1)
	l, err = inflight.Protect(&options{Total: 5, MaxQueue: 1, MaxWaiting: 1})
	require.NoError(t, err)
	assert.Equal(t, 5, l.Totals().Limit)
	for text, o := range map[string]*options{
		"Options.Adaptive is set": {Adaptive: inflight.Learn(nil)}, "Options.Shared, and it is set": {Shared: inflight.Learn(nil)},
		"Options.Total is -1": {Total: -1}, "Options.MaxQueue is -1": {MaxQueue: -1},
	} {
		_, err := inflight.Protect(o)
		assert.ErrorContains(t, err, text)
	}
}

func TestStatsOfAKeyThatWasNeverSeen(t *testing.T) {
	_, ok := newLimiter(t, 1, nil).Stats("a")
	assert.False(t, ok)
}
