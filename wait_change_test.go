package ratelimit_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// line spends the budget of "k", and then starts n calls that wait for 1 each, in order.
func line(t *testing.T, w *waiters, n int) {
	t.Helper()
	limit, err := w.limiter.Peek(t.Context(), "k", 0)
	require.NoError(t, err)
	require.True(t, w.limiter.Allow("k", limit.Limit.Capacity()))
	for i := range n {
		w.wait(t.Context(), strconv.Itoa(i), 1)
	}
}

// inOrder checks that all n calls were served in order, the last one by the given time.
func (w *waiters) inOrder(t *testing.T, n int, by time.Duration) {
	t.Helper()
	w.wg.Wait()
	require.Empty(t, w.failed)
	require.Len(t, w.served, n)
	require.LessOrEqual(t, w.at[n-1], by)
	require.Zero(t, w.limiter.Stats().Waiting)
	at := map[string]time.Duration{} // calls served at one instant return in any order
	for i, name := range w.served {
		at[name] = w.at[i]
	}
	for i := 1; i < n; i++ {
		require.GreaterOrEqual(t, at[strconv.Itoa(i)], at[strconv.Itoa(i-1)], "the order of arrival")
	}
}

// takeAll returns limits of n a second, under which a call may have to wait.
func takeAll(n int) []ratelimit.Limit {
	r := ratelimit.PerSecond(n)
	return []ratelimit.Limit{
		ratelimit.TokenBucket(r, 1), ratelimit.TokenBucket(r, n), ratelimit.FixedWindow(r), ratelimit.SlidingLog(r), ratelimit.SlidingCounter(r),
	}
}

func TestARaisedLimitServesTheLineAtItsRate(t *testing.T) {
	for i, from := range takeAll(1) {
		t.Run(from.String(), func(t *testing.T) {
			bubble(t, from, func(t *testing.T, w *waiters) {
				line(t, w, 300)
				require.NoError(t, w.limiter.SetLimit(takeAll(100)[i]))
				synctest.Wait()
				d, err := w.limiter.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				require.False(t, d.Allowed, "a newcomer does not overtake")
				require.LessOrEqual(t, d.RetryAfter, 7*time.Second)
				w.inOrder(t, 300, 7*time.Second)
			})
		})
	}
}

func TestALoweredLimitBrakesTheLine(t *testing.T) {
	for i, from := range takeAll(1000) {
		t.Run(from.String(), func(t *testing.T) {
			bubble(t, from, func(t *testing.T, w *waiters) {
				ctx, leave := context.WithCancel(t.Context())
				line(t, w, 0)
				for range 6000 {
					w.wg.Go(func() { w.done("one", w.limiter.Wait(ctx, "k", 1)) })
				}
				synctest.Wait()
				require.NoError(t, w.limiter.SetLimit(takeAll(10)[i]))
				time.Sleep(30 * time.Second)
				leave()
				w.wg.Wait()
				require.GreaterOrEqual(t, len(w.served), 250, "the line moves on at the lower rate")
				require.LessOrEqual(t, len(w.served), 330)
			})
		})
	}
}

func TestABlockedKeyEndsItsWaitsAtOnce(t *testing.T) {
	for name, limitFor := range map[string]bool{"SetLimit": false, "LimitFor": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 2)
				o := &ratelimit.Options[string]{}
				if limitFor {
					o.LimitFor = func(string) ratelimit.Limit { return limit }
				}
				w := &waiters{limiter: ratelimit.Must(ratelimit.New(limit, o)), start: time.Now()}
				line(t, w, 100)
				stack := ratelimit.Must(ratelimit.All(ratelimit.By(w.limiter, itself)))
				w.wg.Go(func() { w.done("stack", stack.Wait(t.Context(), "k", 1)) })
				r, err := w.limiter.Reserve(t.Context(), "k", 1, time.Hour)
				require.NoError(t, err)
				w.wg.Go(func() { w.done("reserved", r.Wait(t.Context())) })
				synctest.Wait()
				time.Sleep(1500 * time.Millisecond) // one is served
				if limitFor {
					limit = ratelimit.Blocked()
					w.limiter.Refresh("k")
				} else {
					require.NoError(t, w.limiter.SetLimit(ratelimit.Blocked()))
				}
				w.wg.Wait()
				require.Equal(t, 1500*time.Millisecond, time.Since(w.start))
				require.Len(t, w.served, 1)
				require.Len(t, w.failed, 101)
				for name, err := range w.failed {
					require.ErrorIs(t, err, ratelimit.ErrBlocked, name)
				}
				require.Zero(t, w.limiter.Stats().Waiting)
			})
		})
	}
}

func TestUnlimitedLetsTheLinePass(t *testing.T) {
	for _, limit := range takeAll(1) {
		bubble(t, limit, func(t *testing.T, w *waiters) {
			line(t, w, 50)
			require.NoError(t, w.limiter.SetLimit(ratelimit.Unlimited()))
			w.inOrder(t, 50, 0)
		})
	}
}

// A waiting call passes without a charge when its key becomes unlimited. Its settlement then charges nothing.
func TestASettlementOfACallThatUnlimitedLetPassChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := ratelimit.TokenBucket(ratelimit.PerHour(100), 100)
		l := ratelimit.Must(ratelimit.New[string](bucket, nil))
		require.True(t, l.Allow("k", 60))
		waiting, err := l.Reserve(t.Context(), "k", 50, time.Hour)
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- waiting.Wait(t.Context()) }()
		synctest.Wait()
		require.NoError(t, l.SetLimit(ratelimit.Unlimited()))
		require.NoError(t, <-done)
		late, err := l.Reserve(t.Context(), "k", 50, 0)
		require.NoError(t, err)
		require.NoError(t, l.SetLimit(bucket))
		require.NoError(t, waiting.Settle(30))
		require.NoError(t, late.Settle(30))
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 40, d.Remaining)
	})
}

func TestAGrantServesTheLine(t *testing.T) {
	for _, limit := range takeAll(10) {
		t.Run(limit.String(), func(t *testing.T) {
			bubble(t, limit, func(t *testing.T, w *waiters) {
				line(t, w, 20)
				for range 4 {
					require.NoError(t, w.limiter.Adjust(t.Context(), "k", -5))
					synctest.Wait()
					require.False(t, limit.Burst == 0 && w.limiter.Allow("k", 1) && len(w.served) < 20, "the grant belongs to the line")
				}
				if limit.Burst != 1 { // such a bucket gets back at most one unit from a grant
					require.Len(t, w.served, 20)
				}
				w.inOrder(t, 20, 2*time.Second)
			})
		})
	}
}

func TestASettlementServesTheLine(t *testing.T) {
	for _, limit := range takeAll(10)[1:] {
		t.Run(limit.String(), func(t *testing.T) {
			bubble(t, limit, func(t *testing.T, w *waiters) {
				var open []*ratelimit.Reservation
				for range 2 {
					r, err := w.limiter.Reserve(t.Context(), "k", 5, 0)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					open = append(open, r)
				}
				for i := range 8 {
					w.wait(t.Context(), strconv.Itoa(i), 1)
				}
				require.NoError(t, open[0].Settle(1))
				synctest.Wait()
				require.Len(t, w.served, 4)
				require.NoError(t, open[1].Settle(1))
				w.inOrder(t, 8, 0)
			})
		})
	}
}

func TestALoweredLimitDoesNotStopTheLine(t *testing.T) {
	for i, from := range takeAll(100) {
		t.Run(from.String(), func(t *testing.T) {
			bubble(t, from, func(t *testing.T, w *waiters) {
				line(t, w, 120)
				require.NoError(t, w.limiter.SetLimit(takeAll(10)[i]))
				time.Sleep(2500 * time.Millisecond)
				w.mu.Lock()
				require.GreaterOrEqual(t, len(w.served), 9)
				w.mu.Unlock()
				w.inOrder(t, 120, 15*time.Second)
			})
		})
	}
}

func TestALineOutlivesItsKey(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 8} {
		t.Run(fmt.Sprintf("%d keys", maxKeys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), &ratelimit.Options[string]{MaxKeys: maxKeys}))
				w := &waiters{limiter: l, start: time.Now()}
				line(t, w, 60)
				for i := 0; l.Stats().Waiting > 0; i++ {
					require.True(t, l.Allow("once "+strconv.Itoa(i), 1))
					require.False(t, l.Allow("k", 1) && l.Stats().Waiting > 0, "a newcomer has overtaken the line")
					time.Sleep(99 * time.Millisecond)
				}
				w.inOrder(t, 60, 6*time.Second)
				if maxKeys > 1 {
					require.Zero(t, l.Stats().EvictedThrottled)
				}
			})
		})
	}
}

func TestALineWhoseKeyWasDroppedMayLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{MaxKeys: 1}))
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var wg sync.WaitGroup
		require.True(t, l.Allow("k", 1))
		for range 20 {
			wg.Go(func() { _ = l.Wait(ctx, "k", 1) })
		}
		synctest.Wait()
		for i := range 100 {
			if i == 50 {
				leave()
			}
			l.Allow(strconv.Itoa(i), 1)
			l.Allow("k", 1)
			_ = l.Reset(t.Context(), "k")
		}
		wg.Wait()
		require.Zero(t, l.Stats().Waiting)
		time.Sleep(time.Minute)
		require.True(t, l.Allow("k", 1))
	})
}

func TestKeysAreResetAndEvictedWhileAThousandWait(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(100_000), 10), &ratelimit.Options[int]{MaxKeys: 3}))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var wg, others sync.WaitGroup
	var mu sync.Mutex
	served := 0
	for i := range 1000 {
		wg.Go(func() {
			for range testsize.Of(5, 50) {
				if l.Wait(ctx, i%5, 1+i%3) == nil {
					mu.Lock()
					served++
					mu.Unlock()
				}
			}
		})
	}
	for g := range 2 {
		others.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				switch i % 5 {
				case 0:
					_ = l.Reset(ctx, i/5%5)
				case 1:
					_ = l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(50_000+i%2*50_000), 10))
				case 2:
					l.Refresh(i / 5 % 5)
				case 3:
					r, _ := l.Reserve(ctx, i/5%5, 2, time.Second)
					if i%2 == 0 {
						_ = r.Wait(ctx)
					}
					_ = r.Settle(1)
				default:
					l.Allow(100+g*1000+i%1000, 1)
				}
			}
		})
	}
	wg.Wait()
	leave()
	others.Wait()
	require.Equal(t, testsize.Of(5000, 50_000), served)
	require.Zero(t, l.Stats().Waiting)
}

func TestSavedHasNoCallsThatWait(t *testing.T) {
	for _, limit := range takeAll(1) {
		bubble(t, limit, func(t *testing.T, w *waiters) {
			ctx, leave := context.WithCancel(t.Context())
			require.True(t, w.limiter.Allow("k", 1))
			for range 600 {
				w.wg.Go(func() { w.done("one", w.limiter.Wait(ctx, "k", 1)) })
			}
			synctest.Wait()
			next := ratelimit.Must(ratelimit.New[string](limit, nil))
			require.NoError(t, next.Restore(w.limiter.Saved(), 0))
			leave()
			w.wg.Wait()
			d, err := next.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.LessOrEqual(t, d.RetryAfter, 2*time.Second, "only what was spent is restored")
		})
	}
}

// 600 calls are booked at 10 a second. At 1,000 a second they take 10 units of each 1,000.
func TestAfterARaiseFarBookingsLeaveTheRestToOthers(t *testing.T) {
	const seconds = 10
	for i, from := range takeAll(10) {
		t.Run(from.String(), func(t *testing.T) {
			l, clock := newLimiter(t, from)
			require.True(t, l.Allow("k", from.Capacity()))
			for range 600 {
				r, err := l.Reserve(t.Context(), "k", 1, 2*time.Minute)
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
			require.NoError(t, l.SetLimit(takeAll(1000)[i]))
			d, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Zero(t, d.Debt)
			passed := 0
			for ms := range seconds * 1000 {
				clock.set(time.Duration(ms) * time.Millisecond)
				for l.Allow("k", 1) {
					passed++
				}
			}
			require.GreaterOrEqual(t, passed, 990*(seconds-1))
			require.LessOrEqual(t, passed, 990*seconds+1000)
		})
	}
}

func TestAfterARaiseTheLineGoesBeforeFarBookingsAndBeforeNewcomers(t *testing.T) {
	for i, from := range takeAll(10) {
		t.Run(from.String(), func(t *testing.T) {
			bubble(t, from, func(t *testing.T, w *waiters) {
				require.True(t, w.limiter.Allow("k", from.Capacity()))
				var booked []*ratelimit.Reservation
				for range 300 {
					r, err := w.limiter.Reserve(t.Context(), "k", 1, 2*time.Minute)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					booked = append(booked, r)
				}
				for i := range 50 {
					w.wait(t.Context(), strconv.Itoa(i), 1)
				}
				time.Sleep(1500 * time.Millisecond)
				require.NoError(t, w.limiter.SetLimit(takeAll(20)[i]))
				for w.limiter.Stats().Waiting > 0 {
					require.False(t, w.limiter.Allow("k", 1), "a newcomer does not overtake")
					time.Sleep(100 * time.Millisecond)
				}
				w.inOrder(t, 50, 9*time.Second)
				for _, r := range booked {
					require.NoError(t, r.Cancel())
				}
			})
		})
	}
}

// A Peek may find a new limit before the line does. The Peek then decides for a call at the line's end, behind the bookings.
func TestAPeekBetweenANewLimitAndItsLineAnswers(t *testing.T) {
	for _, limit := range takeAll(10) {
		bubble(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), func(t *testing.T, w *waiters) {
			require.True(t, w.limiter.Allow("k", 10))
			r, err := w.limiter.Reserve(t.Context(), "k", 5, time.Second)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			w.wait(t.Context(), "0", 3)
			require.NoError(t, w.limiter.SetLimit(limit))
			d, err := w.limiter.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Zero(t, d.Remaining, limit)
			require.Equal(t, limit, d.Limit)
			w.wg.Wait()
		})
	}
}
