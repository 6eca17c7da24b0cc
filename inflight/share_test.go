package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// Keys with waiters at all times share slot-time by their weights, however long their work takes and however
// many units it needs. The error is at most one request of each key, plus the units in flight at the start.
func TestSharesAreOfSlotTime(t *testing.T) {
	for seed := range uint64(25) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 9))
			total := 1 + rng.IntN(10)
			type worker struct {
				key    string
				weight int
				units  int
				work   time.Duration
				used   time.Duration // units × time, sampled each second
				held   atomic.Int64  // the units held
			}
			var workers []*worker
			weights := map[string]int{}
			for i := range 2 + rng.IntN(3) {
				w := &worker{key: fmt.Sprint(i), weight: 1 + rng.IntN(5), units: 1 + rng.IntN(min(3, total)), work: time.Duration(1+rng.IntN(500)) * 10 * time.Millisecond}
				weights[w.key] = w.weight
				workers = append(workers, w)
			}
			l := newLimiter(t, total, &options{Total: total, MaxQueue: 1000, Clock: new(creeping), Weight: func(key string) int { return weights[key] }})
			ctx, cancel := context.WithCancel(t.Context())
			for _, w := range workers {
				// With so many callers, one always waits. A key loses its claim to unused time
				// once it has no waiters, even only at the instant when all its callers return.
				for range 2*total + 3 {
					go func() {
						for {
							p, err := l.Acquire(ctx, w.key, w.units)
							if err != nil {
								return
							}
							w.held.Add(int64(w.units))
							time.Sleep(w.work)
							w.held.Add(-int64(w.units))
							p.Release()
						}
					}()
					synctest.Wait()
				}
			}
			const every, length = 10 * time.Millisecond, 300 * time.Second
			for range length / every {
				time.Sleep(every)
				synctest.Wait()
				for _, w := range workers {
					w.used += time.Duration(w.held.Load()) * every
				}
			}
			cancel()
			for _, a := range workers {
				for _, b := range workers {
					da, db := float64(a.used)/float64(a.weight), float64(b.used)/float64(b.weight)
					slack := float64(a.work)*float64(a.units)/float64(a.weight) + float64(b.work)*float64(b.units)/float64(b.weight)
					flight := float64(total) * float64(max(a.work, b.work)) // the units in flight at the start
					require.LessOrEqual(t, da-db, slack+flight, "seed %d: total %d, keys %s and %s", seed, total, a.key, b.key)
				}
			}
			time.Sleep(time.Minute)
		})
	}
}

func TestSetTotalServesWaitersOrRefusesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 10, &options{Total: 2, MaxQueue: 10})
		q := &line{l: l}
		a := q.send("a", "a", 2)
		b, c := q.send("b", "b", 2), q.send("c", "c", 1)
		require.NoError(t, l.SetTotal(5))
		synctest.Wait()
		assert.True(t, b.done && c.done)
		d, e := q.send("d", "d", 5), q.send("e", "e", 1)
		require.NoError(t, l.SetTotal(3))
		synctest.Wait()
		assert.ErrorIs(t, d.err, ratelimit.ErrExceedsLimit)
		assert.False(t, e.done, "five are in flight: nobody is cut off, and nobody let in")
		_, err := l.TryAcquire("x", 4)
		assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		a.release()
		assert.False(t, e.done)
		c.release()
		assert.True(t, e.done)
		b.release()
		e.release()
		assert.ErrorContains(t, l.SetTotal(0), "inflight: the total is 0")
		assert.ErrorContains(t, newLimiter(t, 1, nil).SetTotal(3), "Total was not set")
	})
}

func TestHigherPriorityGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 10, &options{Total: 2, MaxQueue: 10, Priority: func(key string) int { return int(key[0] - '0') }})
		q := &line{l: l}
		held := take(t, l, "0", 1)
		large := q.send("large", "0", 2) // it collects freed units
		refused(t, l, "0b", 1)
		top := take(t, l, "2", 1) // it passes the waiters of lower levels
		low, high := q.send("low", "1", 1), q.send("high", "2", 1)
		refused(t, l, "1", 1)
		held.Release()
		synctest.Wait()
		assert.True(t, high.done)
		assert.False(t, low.done || large.done)
		top.Release()
		synctest.Wait()
		assert.True(t, low.done)
		low.release()
		high.release()
		assert.True(t, large.done)
		large.release()
	})
}

func TestFullQueueShedsTheNewestOfTheLowestPriority(t *testing.T) {
	for _, total := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, 1, &options{Total: total, MaxQueue: 10, MaxWaiting: 3, Priority: func(key string) int { return int(key[0] - '0') }})
			q := &line{l: l}
			var held []inflight.Permit
			for _, key := range []string{"0", "1", "2"} {
				if p, err := l.TryAcquire(key, 1); err == nil {
					held = append(held, p)
				}
			}
			first, second, third := q.send("first", "0", 1), q.send("second", "0", 1), q.send("third", "1", 1)
			same := q.send("same", "0", 1)
			assert.ErrorIs(t, same.err, ratelimit.ErrLimited, "nobody makes room for an equal")
			assert.NotErrorIs(t, same.err, inflight.ErrShed)
			four := q.send("four", "2", 1)
			assert.ErrorIs(t, second.err, inflight.ErrShed)
			assert.ErrorIs(t, second.err, ratelimit.ErrLimited)
			five := q.send("five", "1", 1)
			assert.ErrorIs(t, first.err, inflight.ErrShed)
			six := q.send("six", "1", 1)
			assert.ErrorIs(t, six.err, ratelimit.ErrLimited)
			assert.False(t, third.done || four.done || five.done)
			for _, p := range held {
				p.Release()
			}
			for range 3 {
				synctest.Wait()
				for _, c := range []*caller{third, four, five} {
					if c.done && c.err == nil {
						c.release()
					}
				}
			}
			synctest.Wait()
			assert.True(t, third.done && four.done && five.done)
		})
	}
}

func TestSharedLimitAdaptsForAllKeysTogether(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(4, 2, 8)
	var changes []string
	l := newLimiter(t, 10, &options{Total: 8, Shared: adaptive, Clock: clock, MaxQueue: 5, OnLimit: func(key string, old, new int) {
		changes = append(changes, fmt.Sprintf("%q %d %d", key, old, new))
	}})
	a, b := take(t, l, "a", 2), take(t, l, "b", 2)
	refused(t, l, "c", 1)
	_, err := l.TryAcquire("c", 9)
	assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	a.Release()
	b.Release()
	all := take(t, l, "c", 8) // above the present shared limit, so it is admitted alone
	refused(t, l, "a", 1)
	all.Done(inflight.Ignored)
	for len(*samples) == 0 {
		x, y := take(t, l, "a", 1), take(t, l, "b", 1)
		clock.Advance(50 * time.Millisecond)
		x.Release()
		y.Release()
	}
	assert.Equal(t, 8, (*samples)[0].Max)
	assert.Equal(t, []string{`"" 4 2`}, changes)
	take(t, l, "a", 2)
	refused(t, l, "b", 1)
	require.NoError(t, l.SetTotal(1))
	refused(t, l, "b", 1)
}

func TestOnLimitNamesTheKey(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, _ := script(5, 3)
	var l *inflight.Limiter[string]
	var changes []string
	l = newLimiter(t, 10, &options{Adaptive: adaptive, Clock: clock, OnLimit: func(key string, old, new int) {
		changes = append(changes, fmt.Sprint(key, old, new, stats(t, l, key).Limit)) // no lock is held
	}})
	for len(changes) == 0 {
		finish(t, l, clock, 5, 100*time.Millisecond, inflight.Success)
	}
	assert.Equal(t, []string{"a5 3 3"}, changes)
}

// OnLimit is not called again until it has returned or panicked. The limit does not change meanwhile.
func TestOnLimitIsCalledInOrder(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, _ := script(10, 9, 8, 7, 6, 5)
	var l *inflight.Limiter[string]
	var changes []string
	inside := false
	l = newLimiter(t, 10, &options{Adaptive: adaptive, Clock: clock, OnLimit: func(key string, old, new int) {
		changes = append(changes, fmt.Sprint(old, new))
		assert.False(t, inside)
		inside = true
		defer func() { inside = false }()
		switch len(changes) {
		case 1:
			for range 30 {
				finish(t, l, clock, new, 100*time.Millisecond, inflight.Success)
			}
		case 2:
			panic("of a test")
		}
	}})
	var panics int
	for range 100 {
		func() {
			p := take(t, l, "a", 1)
			clock.Advance(100 * time.Millisecond)
			defer func() {
				if recover() != nil {
					panics++
				}
			}()
			p.Done(inflight.Success)
		}()
	}
	assert.Equal(t, []string{"10 9", "9 8", "8 7", "7 6", "6 5"}, changes)
	assert.Equal(t, 1, panics)
}

func TestShadowCountsAndRefusesNothing(t *testing.T) {
	l := newLimiter(t, 1, &options{Shadow: true, Total: 2, MaxKeys: 2, MaxQueue: 5, LimitFor: func(key string) int {
		if key == "blocked" {
			return -1
		}
		return 0
	}})
	for range 3 {
		take(t, l, "a", 1)
	}
	p, err := l.Acquire(t.Context(), "a", 100)
	require.NoError(t, err)
	take(t, l, "blocked", 1)
	take(t, l, "no room in the table", 1)
	assert.Equal(t, 103, stats(t, l, "a").InFlight)
	assert.EqualValues(t, 3, stats(t, l, "a").Shed)
	p.Release()
	assert.Equal(t, 3, stats(t, l, "a").InFlight)
	_, err = l.TryAcquire("a", -1)
	assert.ErrorIs(t, err, ratelimit.ErrNegativeCost)
}

func TestWaitAgesWithoutWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{MaxQueue: 10})
		q := &line{l: l}
		held := take(t, l, "a", 1)
		first := q.send("first", "a", 1)
		time.Sleep(8 * time.Second)
		held.Release()
		synctest.Wait()
		assert.Equal(t, 8*time.Second, stats(t, l, "a").Wait)
		time.Sleep(8 * time.Second)
		assert.Equal(t, 4*time.Second, stats(t, l, "a").Wait)
		second := q.send("second", "a", 1)
		time.Sleep(8 * time.Second)
		assert.Equal(t, 4*time.Second, stats(t, l, "a").Wait, "somebody waits")
		first.release()
		assert.Equal(t, 4500*time.Millisecond, stats(t, l, "a").Wait)
		time.Sleep(time.Hour)
		assert.Zero(t, stats(t, l, "a").Wait)
		second.release()
	})
}

func TestMistakesOfNewOptionsAreNamed(t *testing.T) {
	for text, o := range map[string]*options{
		"Shared needs Options.Total":                             {Shared: inflight.Learn(nil)},
		"Options.Shared and Options.Adaptive do not go together": {Total: 1, Shared: inflight.Learn(nil), Adaptive: inflight.Learn(nil)},
		"the result of Options.Shared is nil":                    {Total: 1, Shared: func() inflight.Algorithm { return nil }},
		"Options.MaxWaiting is -1":                               {MaxWaiting: -1},
		"LearnOptions.Min is -1":                                 {Total: 1, Shared: inflight.Learn(&inflight.LearnOptions{Min: -1})},
	} {
		_, err := inflight.New(1, o)
		assert.ErrorContains(t, err, text)
	}
	assert.True(t, errors.Is(inflight.ErrShed, ratelimit.ErrLimited))
}

func TestASharedLimitIsNoKeysOwn(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, _ := script(4, 8)
	l := newLimiter(t, 10, &options{Total: 10, Shared: adaptive, Clock: clock})
	for l.Totals().Limit < 8 {
		finish(t, l, clock, 4, 100*time.Millisecond, inflight.Success)
	}
	assert.Equal(t, 10, stats(t, l, "a").Limit, "it was first seen when the shared limit was 4")
	for range 8 {
		take(t, l, "a", 1)
	}
	refused(t, l, "a", 1)
}

func TestARaisedTotalLetsNoKeyAboveItsOwnLimit(t *testing.T) {
	for range 20 { // keys change in any order
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, 2, &options{Total: 2, MaxQueue: 10})
			q := &line{l: l}
			held := take(t, l, "a", 2)
			a, b := q.send("a", "a", 1), q.send("b", "b", 1)
			require.NoError(t, l.SetTotal(10))
			synctest.Wait()
			assert.False(t, a.done)
			assert.True(t, b.done)
			assert.Equal(t, 2, stats(t, l, "a").InFlight)
			held.Release()
			synctest.Wait()
			assert.True(t, a.done)
			a.release()
			b.release()
		})
	}
}

func TestWaitersMoveToTheirNewPriorityAndKeepTheirAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		level := map[string]int{"page": 1, "third": 2}
		l := newLimiter(t, 10, &options{Total: 1, MaxQueue: 10, MaxWaiting: 3, Priority: func(key string) int { return level[key] }})
		q := &line{l: l}
		held := take(t, l, "x", 1)
		page, low, job := q.send("page", "page", 1), q.send("low", "low", 1), q.send("job", "job", 1)
		level["page"] = 0
		l.Refresh("page")
		third := q.send("third", "third", 1)
		assert.ErrorIs(t, job.err, inflight.ErrShed, "the newest by the time at which it came")
		level["low"] = 3
		l.Refresh()
		for _, c := range []*caller{low, third, page} {
			assert.False(t, c.done)
			held.Release()
			synctest.Wait()
			require.True(t, c.done)
			held = c.permit
		}
		held.Release()
	})
}

// SetLimit raises all limits at once: no key of a lower level takes units due to a higher level.
func TestRaisedLimitsLetInByPriority(t *testing.T) {
	for range 20 { // keys change in any order
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, 1, &options{Total: 3, MaxQueue: 10, Priority: func(key string) int { return map[string]int{"page": 1}[key] }})
			q := &line{l: l}
			held := []inflight.Permit{take(t, l, "page", 1), take(t, l, "job", 1)}
			job, page := q.send("job", "job", 1), q.send("page", "page", 1)
			require.NoError(t, l.SetLimit(2))
			synctest.Wait()
			assert.True(t, page.done)
			assert.False(t, job.done)
			for _, p := range held {
				p.Release()
			}
			synctest.Wait()
			page.release()
			job.release()
		})
	}
}
