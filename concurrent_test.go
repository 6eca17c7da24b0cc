package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestConcurrentText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ratelimit.Limit{
		"concurrent 8 hold 1m":       ratelimit.Concurrent(8, time.Minute),
		"concurrent 1 hold 1h":       ratelimit.Concurrent(1, time.Hour),
		"concurrent 100 hold 1m30s":  ratelimit.Concurrent(100, 90*time.Second),
		"concurrent 5 hold 250ms":    ratelimit.Concurrent(5, 250*time.Millisecond),
		"concurrent 5 hold 1h0m0.5s": ratelimit.Concurrent(5, time.Hour+500*time.Millisecond),
		"concurrent 5 hold 24h":      ratelimit.Concurrent(5, 24*time.Hour),
	} {
		got, err := ratelimit.ParseLimit(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got)
		assert.Equal(t, text, got.String())
		b, err := json.Marshal(got.Named("streams"))
		require.NoError(t, err)
		assert.JSONEq(t, `"`+text+` name streams"`, string(b))
		var back ratelimit.Limit
		require.NoError(t, json.Unmarshal(b, &back))
		assert.Equal(t, want.Named("streams"), back)
	}
	for _, text := range []string{"concurrent 5 hold s", "concurrent 5 hold m", "concurrent 5 hold d", " concurrent  5  hold 7d "} {
		_, err := ratelimit.ParseLimit(text)
		require.NoError(t, err, text)
	}
	for text, names := range map[string]string{
		"concurrent":                 "no units",
		"concurrent 8":               `"hold"`,
		"concurrent 8 hold":          `"hold"`,
		"concurrent 8 keep 1m":       `"keep 1m"`,
		"concurrent x hold 1m":       `"x"`,
		"concurrent 0 hold 1m":       "Rate.Units is 0",
		"concurrent -1 hold 1m":      "Rate.Units is -1",
		"concurrent 8 hold 0s":       "hold (Rate.Per) is 0s",
		"concurrent 8 hold -1s":      "hold (Rate.Per) is -1s",
		"concurrent 8 hold soon":     `"soon"`,
		"concurrent 8 hold 40000d":   "100 years",
		"concurrent 8 hold 1m extra": `"extra"`,
		"concurrent 8/m hold 1m":     `"8/m"`,
	} {
		_, err := ratelimit.ParseLimit(text)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, text)
		assert.ErrorContains(t, err, names)
	}
	bad := ratelimit.Concurrent(8, time.Minute)
	bad.Burst = 1
	assert.ErrorContains(t, bad.Validate(), "Burst is 1")
	l := ratelimit.Concurrent(8, time.Minute)
	assert.Equal(t, 8, l.Capacity())
	assert.Equal(t, time.Minute, l.RefillTime())
	assert.Equal(t, "concurrent", l.Algorithm.String())
}

// held is a limiter under Concurrent, with a clock set by hand.
func held(t *testing.T, units int, hold time.Duration) (*ratelimit.Keyed[string], *testClock) {
	t.Helper()
	c := new(testClock)
	return newWith(t, ratelimit.Concurrent(units, hold), ratelimit.Options[string]{Clock: c}), c
}

func reserve(t *testing.T, l ratelimit.Reserver[string], key string, n int) *ratelimit.Reservation {
	t.Helper()
	r, err := l.Reserve(t.Context(), key, n, 0)
	require.NoError(t, err)
	return r
}

func TestConcurrentReservationsHoldUnitsUntilTheyEnd(t *testing.T) {
	t.Parallel()
	l, c := held(t, 8, time.Minute)
	var all []*ratelimit.Reservation
	for range 8 {
		c.advance(time.Second)
		r := reserve(t, l, "a", 1)
		require.True(t, r.Allowed)
		assert.Zero(t, r.Delay)
		all = append(all, r)
	}
	denied, err := l.Reserve(t.Context(), "a", 1, time.Hour)
	require.NoError(t, err)
	assert.False(t, denied.Allowed, "nothing is booked ahead")
	assert.Equal(t, 437500*time.Microsecond, denied.RetryAfter, "the mean age is 3.5 s, of 8 units")
	assert.Equal(t, denied.RetryAfter, denied.ResetAfter)
	assert.Equal(t, denied.RetryAfter, denied.NextAfter)
	assert.True(t, reserve(t, l, "b", 8).Allowed, "another key")

	require.NoError(t, all[3].Settle(5000))
	require.NoError(t, all[4].Cancel())
	require.NoError(t, all[4].Settle(7), "only the first call counts")
	require.NoError(t, all[5].Settle(1))
	d, err := l.Peek(t.Context(), "a", 3)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 3, d.Remaining)
	assert.True(t, reserve(t, l, "a", 3).Allowed)
	assert.False(t, reserve(t, l, "a", 1).Allowed)
}

func TestConcurrentUnitsLapseAfterHoldUnlessTheyAreExtended(t *testing.T) {
	t.Parallel()
	l, c := held(t, 2, time.Minute)
	one, two := reserve(t, l, "a", 1), reserve(t, l, "a", 1)
	c.advance(40 * time.Second)
	require.NoError(t, one.Extend(t.Context()))
	require.NoError(t, one.Extend(t.Context()), "at the same instant")
	c.advance(20 * time.Second)
	require.ErrorIs(t, two.Extend(t.Context()), ratelimit.ErrLost)
	three := reserve(t, l, "a", 1)
	require.True(t, three.Allowed)
	require.False(t, reserve(t, l, "a", 1).Allowed)
	require.NoError(t, two.Settle(1), "which gives nothing of others back")
	require.False(t, reserve(t, l, "a", 1).Allowed)
	c.advance(39 * time.Second)
	require.NoError(t, one.Extend(t.Context()))
	require.NoError(t, one.Settle(9))
	require.ErrorIs(t, one.Extend(t.Context()), ratelimit.ErrLost, "after the end")
	require.NoError(t, three.Extend(t.Context()))
	require.True(t, reserve(t, l, "a", 1).Allowed)

	denied := reserve(t, l, "a", 1)
	require.ErrorIs(t, denied.Extend(t.Context()), ratelimit.ErrLost)
	var none *ratelimit.Reservation
	require.NoError(t, none.Extend(t.Context()))
	rate := newWith(t, ratelimit.SlidingLog(ratelimit.PerMinute(1)), ratelimit.Options[string]{Clock: c})
	require.NoError(t, reserve(t, rate, "a", 1).Extend(t.Context()), "a rate has no hold")
	require.NoError(t, l.Reset(t.Context(), "a"))
	require.ErrorIs(t, three.Extend(t.Context()), ratelimit.ErrLost)
}

func TestConcurrentTakesHaveNoEnd(t *testing.T) {
	t.Parallel()
	l, _ := held(t, 8, time.Minute)
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(8, time.Minute).Named("streams")))
	for range 2 { // once for a new key, and once for a known one
		assert.False(t, l.Allow("a", 1))
		d, err := l.Take(t.Context(), "a", 1)
		require.ErrorContains(t, err, `the limit "streams" is concurrent 8 hold 1m, and this call has no end`)
		assert.False(t, d.Allowed)
		assert.Equal(t, "streams", d.Limit.Name)
		require.ErrorContains(t, l.Wait(t.Context(), "a", 1), "no end")
		require.ErrorContains(t, ratelimit.Wait(t.Context(), l, "a", 1), "no end")
		_, _, err = ratelimit.TakeUpTo(t.Context(), l, "a", 3)
		require.ErrorContains(t, err, "no end")
		require.True(t, reserve(t, l, "a", 4).Allowed)
	}
	assert.True(t, l.Allow("a", 0))
	_, err := l.Take(t.Context(), "a", 0)
	require.NoError(t, err)
	d, err := l.Peek(t.Context(), "a", 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.True(t, ratelimit.Describe(l).Holds)
	_, err = l.Reserve(t.Context(), "a", 9, 0)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)

	own := newWith(t, ratelimit.SlidingLog(ratelimit.PerMinute(5)), ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit {
		return ratelimit.Concurrent(1, time.Minute)
	}})
	assert.False(t, own.Allow("a", 1))
	_, err = own.Take(t.Context(), "a", 1)
	require.ErrorContains(t, err, "no end")
	require.True(t, reserve(t, own, "a", 1).Allowed)
}

func TestConcurrentLoweredEndsNoCall(t *testing.T) {
	t.Parallel()
	l, c := held(t, 8, time.Minute)
	var all []*ratelimit.Reservation
	for range 6 {
		c.advance(time.Second)
		all = append(all, reserve(t, l, "a", 1))
	}
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(4, time.Minute)))
	for i, r := range all[:3] {
		require.False(t, reserve(t, l, "a", 1).Allowed)
		d, err := l.Peek(t.Context(), "a", 1)
		require.NoError(t, err)
		assert.Equal(t, max(0, 2-i), d.Debt)
		assert.LessOrEqual(t, d.RetryAfter, time.Minute)
		require.NoError(t, r.Settle(1))
	}
	require.True(t, reserve(t, l, "a", 1).Allowed)
	require.False(t, reserve(t, l, "a", 1).Allowed)
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(5, 2*time.Minute)))
	require.NoError(t, all[3].Extend(t.Context()))
	require.True(t, reserve(t, l, "a", 1).Allowed)
	require.NoError(t, l.SetLimit(ratelimit.Blocked()))
	_, err := l.Reserve(t.Context(), "a", 1, 0)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
	require.NoError(t, l.SetLimit(ratelimit.Unlimited()))
	require.True(t, reserve(t, l, "a", 1000).Allowed)
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(5, 2*time.Minute)))
	require.False(t, reserve(t, l, "a", 1).Allowed, "Unlimited and Blocked leave units in use as they are")
}

func TestConcurrentAfterAnotherAlgorithmBeginsWithNothingInUse(t *testing.T) {
	t.Parallel()
	for _, rate := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerHour(5), 5), ratelimit.LeakyBucket(ratelimit.PerHour(5), 5), ratelimit.FixedWindow(ratelimit.PerHour(5)),
		ratelimit.SlidingLog(ratelimit.PerHour(5)), ratelimit.SlidingCounter(ratelimit.PerHour(5)), ratelimit.Calendar(5, ratelimit.Hour("UTC")),
	} {
		c := new(testClock)
		l := newWith(t, rate, ratelimit.Options[string]{Clock: c})
		spent := reserve(t, l, "a", 1)
		require.True(t, spent.Allowed, rate)
		require.NoError(t, l.SetLimit(ratelimit.Concurrent(5, time.Minute)))
		inUse := reserve(t, l, "a", 5)
		require.True(t, inUse.Allowed)
		require.NoError(t, spent.Settle(0))
		require.False(t, reserve(t, l, "a", 1).Allowed, "the old charge gives no units back")
		require.NoError(t, l.SetLimit(rate))
		d, err := l.Peek(t.Context(), "a", 1)
		require.NoError(t, err)
		assert.Equal(t, 5, d.Remaining, rate)
		require.True(t, l.Allow("a", 5))
		require.ErrorIs(t, inUse.Extend(t.Context()), ratelimit.ErrLost)
		require.NoError(t, inUse.Settle(100), "which neither charges nor gives back")
		d, err = l.Peek(t.Context(), "a", 1)
		require.NoError(t, err)
		assert.Zero(t, d.Debt)
		assert.Zero(t, d.Remaining, rate)
	}
}

func TestConcurrentEndsTheLineOfCallsThatWaitForARate(t *testing.T) {
	t.Parallel()
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1), ratelimit.Options[string]{})
	require.True(t, l.Allow("a", 1))
	errs := make(chan error)
	for range 3 {
		go func() { errs <- l.Wait(context.Background(), "a", 1) }()
	}
	require.Eventually(t, func() bool {
		d, err := l.Peek(t.Context(), "a", 1)
		return err == nil && d.RetryAfter > 3*time.Hour+30*time.Minute
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(1, time.Minute)))
	for range 3 {
		require.ErrorContains(t, <-errs, "no end")
	}
	require.True(t, reserve(t, l, "a", 1).Allowed)
}

func TestConcurrentIsNotSaved(t *testing.T) {
	t.Parallel()
	l, c := held(t, 3, time.Minute)
	require.True(t, reserve(t, l, "a", 3).Allowed)
	assert.Empty(t, maps.Collect(l.Saved()))
	other := newWith(t, ratelimit.SlidingLog(ratelimit.PerMinute(3)), ratelimit.Options[string]{Clock: c})
	require.True(t, other.Allow("a", 3))
	require.NoError(t, l.Restore(other.Saved(), 0), "of a rate")
	c.advance(time.Second)
	require.False(t, reserve(t, l, "a", 1).Allowed)
}

func TestConcurrentKeysInUseLeaveLast(t *testing.T) {
	t.Parallel()
	c := new(testClock)
	l := newWith(t, ratelimit.Concurrent(2, time.Hour), ratelimit.Options[string]{Clock: c, MaxKeys: 1000})
	kept := reserve(t, l, "kept", 2)
	for i := range 20_000 {
		c.advance(time.Millisecond)
		require.NoError(t, reserve(t, l, fmt.Sprint(i), 1).Cancel())
	}
	require.NoError(t, kept.Extend(t.Context()))
	require.False(t, reserve(t, l, "kept", 1).Allowed)
}

// counter is a simple counter of units in use, Concurrent's model.
type counter struct {
	units int
	hold  time.Duration
	inUse []*use
}

type use struct {
	n    int
	from time.Duration
	res  *ratelimit.Reservation
}

// at drops lapsed units and returns the units in use.
func (m *counter) at(now time.Duration) (n int) {
	kept := m.inUse[:0]
	for _, u := range m.inUse {
		if now-u.from < m.hold {
			kept, n = append(kept, u), n+u.n
		}
	}
	m.inUse = kept
	return n
}

func TestConcurrentMatchesACounterOverRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 70))
		m := &counter{units: 1 + rng.IntN(12), hold: time.Duration(1+rng.IntN(50)) * time.Millisecond}
		c := new(testClock)
		l := newWith(t, ratelimit.Concurrent(m.units, m.hold), ratelimit.Options[string]{Clock: c})
		var all []*use
		now := time.Duration(0)
		for step := range 1500 {
			if rng.IntN(2) == 0 {
				d := time.Duration(rng.IntN(4)) * time.Millisecond
				c.advance(d)
				now += d
			}
			used := m.at(now)
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			switch k := rng.IntN(12); {
			case k < 5:
				n := 1 + rng.IntN(m.units)
				r := reserve(t, l, "a", n)
				require.Equal(t, used+n <= m.units, r.Allowed, where)
				if !r.Allowed {
					require.Positive(t, r.RetryAfter, where)
					require.LessOrEqual(t, r.RetryAfter, m.hold, where)
					require.GreaterOrEqual(t, r.RetryAfter, min(10*time.Millisecond, m.hold), where)
					continue
				}
				u := &use{n, now, r}
				all, m.inUse = append(all, u), append(m.inUse, u)
			case k < 8 && len(all) > 0: // including lapsed and ended reservations
				u := all[rng.IntN(len(all))]
				require.NoError(t, u.res.Settle(rng.IntN(100)), where)
				for i, x := range m.inUse {
					if x == u {
						m.inUse = append(m.inUse[:i:i], m.inUse[i+1:]...)
						break
					}
				}
			case k < 10 && len(all) > 0:
				u := all[rng.IntN(len(all))]
				inUse := false
				for _, x := range m.inUse {
					inUse = inUse || x == u
				}
				if err := u.res.Extend(t.Context()); inUse {
					require.NoError(t, err, where)
					u.from = now
				} else {
					require.ErrorIs(t, err, ratelimit.ErrLost, where)
				}
			case k == 10:
				m.units = 1 + rng.IntN(12)
				require.NoError(t, l.SetLimit(ratelimit.Concurrent(m.units, m.hold)))
			default:
				d, err := l.Peek(t.Context(), "a", 1)
				require.NoError(t, err)
				require.Equal(t, max(0, m.units-used), d.Remaining, where)
				require.Equal(t, max(0, used-m.units), d.Debt, where)
				require.Equal(t, used < m.units, d.Allowed, where)
			}
		}
	}
}

// TestAnHourOfStreamsUsesTheCapsAndNoMore plays model.GatewayHour on a stack in memory.
func TestAnHourOfStreamsUsesTheCapsAndNoMore(t *testing.T) {
	testsize.Sequential(t)
	c := new(ratelimittest.Clock)
	stack, err := ratelimit.All(model.GatewayLayers(func(limit ratelimit.Limit) ratelimit.Reserver[string] {
		return newWith(t, limit, ratelimit.Options[string]{Clock: c})
	})...)
	require.NoError(t, err)
	share := model.GatewayHour(t, c, testsize.Of(10*time.Minute, time.Hour), [3]ratelimit.Reserver[model.Stream]{stack, stack, stack})
	t.Logf("%.1f %% of the cap", 100*share)
	assert.GreaterOrEqual(t, share, 0.95)
}

func TestConcurrentBesideRatesIsOneDecision(t *testing.T) {
	t.Parallel()
	model.BesideRates(t, func(t *testing.T) model.Store {
		clock := new(ratelimittest.Clock)
		return model.Store{Clock: clock, New: func(limit ratelimit.Limit) ratelimit.Reserver[string] {
			return newWith(t, limit, ratelimit.Options[string]{Clock: clock})
		}}
	})
}

func TestConcurrentLayerEndsIfActualFails(t *testing.T) {
	t.Parallel()
	c := new(testClock)
	streams := newWith(t, ratelimit.Concurrent(1, time.Minute), ratelimit.Options[string]{Clock: c})
	tokens := newWith(t, ratelimit.SlidingLog(ratelimit.PerMinute(100)), ratelimit.Options[string]{Clock: c})
	key := func(s string) (string, error) { return s, nil }
	s, k := ratelimit.By[string](streams, key), ratelimit.By[string](tokens, key)
	s.Cost = func(string) int { return 1 }
	k.Actual = func(string) int { return -1 }
	all, err := ratelimit.All(s, k)
	require.NoError(t, err)
	r, err := all.Reserve(t.Context(), "a", 10, 0)
	require.NoError(t, err)
	require.ErrorIs(t, r.Settle(3), ratelimit.ErrNegativeCost)
	assert.True(t, reserve(t, streams, "a", 1).Allowed, "the stream has ended")
}

func TestConcurrentExtendAndSettleAtTheSameTime(t *testing.T) {
	t.Parallel()
	l, _ := held(t, 4, time.Hour) // the clock stands still, so all reservations have the same instant
	done := make(chan struct{})
	for range 4 {
		go func() {
			for range 500 {
				r, err := l.Reserve(context.Background(), "a", 1, 0)
				if err != nil || !r.Allowed {
					continue
				}
				ended := make(chan struct{})
				go func() {
					if err := r.Extend(context.Background()); err != nil && !errors.Is(err, ratelimit.ErrLost) {
						panic(err)
					}
					close(ended)
				}()
				_ = r.Settle(3)
				<-ended
			}
			done <- struct{}{}
		}()
	}
	for range 4 {
		<-done
	}
	d, err := l.Peek(t.Context(), "a", 4)
	require.NoError(t, err)
	assert.Equal(t, 4, d.Remaining, "nothing is held at the end")
}

func BenchmarkConcurrentPair(b *testing.B) {
	for _, limit := range []ratelimit.Limit{ratelimit.SlidingLog(ratelimit.Per(8, 10*time.Minute)), ratelimit.Concurrent(8, 10*time.Minute)} {
		b.Run(limit.Algorithm.String(), func(b *testing.B) {
			l := ratelimit.Must(ratelimit.New[string](limit, nil))
			b.ReportAllocs()
			for b.Loop() {
				r, _ := l.Reserve(context.Background(), "a", 1, 0)
				_ = r.Cancel()
			}
		})
	}
}
