package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// Holder is a limiter under ratelimit.Concurrent, on a clock set by a test.
type Holder interface {
	Flipped
	Adjust(ctx context.Context, key string, delta int) error
	Reset(ctx context.Context, key string) error
}

// counter counts units in use. Its method at is the whole model.
type counter struct {
	units int
	hold  time.Duration
	inUse []*use
}

// use is the units of one call or adjustment.
type use struct {
	n    int
	from time.Duration
	res  *ratelimit.Reservation
}

// at drops lapsed units. It returns the units in use and the sum of their ages.
func (m *counter) at(now time.Duration) (used int, ages float64) {
	m.inUse = slices.DeleteFunc(m.inUse, func(u *use) bool { return now-u.from >= m.hold })
	for _, u := range m.inUse {
		used, ages = used+u.n, ages+float64(u.n)*float64(now-u.from)
	}
	return used, ages
}

// back returns the estimated time until the given units are back.
func (m *counter) back(now time.Duration, units int) time.Duration {
	used, ages := m.at(now)
	if used == 0 || units <= 0 {
		return 0
	}
	return min(max(time.Duration(ages/float64(used)/float64(used)*float64(units)), min(10*time.Millisecond, m.hold)), m.hold)
}

// InUse compares limiters with a counter over a random history of two keys. The limiters share their keys, as a
// fleet's processes do. The tick is the precision of their times. InUse leaves the clock at the history's end.
func InUse(t testing.TB, clock Clock, seed uint64, steps int, tick time.Duration, new func(ratelimit.Limit) []Holder) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 70))
	h := &inUse{t: t, rng: rng, clock: clock, tick: tick, hold: time.Duration(1+rng.IntN(50)) * time.Millisecond}
	limit := ratelimit.Concurrent(1+rng.IntN(12), h.hold)
	h.all = new(limit)
	for i := range h.keys {
		h.keys[i] = &counter{units: limit.Rate.Units, hold: h.hold}
	}
	for step := range steps {
		h.where = fmt.Sprintf("seed %d, step %d", seed, step)
		if rng.IntN(2) == 0 {
			clock.Advance(time.Duration(rng.IntN(4)) * time.Millisecond)
		}
		h.step()
	}
}

type inUse struct {
	t     testing.TB
	rng   *rand.Rand
	clock Clock
	tick  time.Duration
	hold  time.Duration
	all   []Holder
	keys  [2]*counter
	made  [2][]*use // includes ended calls, and calls whose units have lapsed
	where string
}

func (h *inUse) step() {
	ctx, now := context.Background(), h.clock.Now()
	l, k := h.all[h.rng.IntN(len(h.all))], h.rng.IntN(len(h.keys))
	m, key := h.keys[k], fmt.Sprint("key", k)
	used, _ := m.at(now)
	var one *use
	if len(h.made[k]) > 0 {
		one = h.made[k][h.rng.IntN(len(h.made[k]))]
	}
	switch n := h.rng.IntN(24); {
	case n < 9:
		h.reserve(l, m, k, key, 1+h.rng.IntN(m.units))
	case n < 14 && one != nil:
		if h.rng.IntN(3) == 0 {
			require.NoError(h.t, one.res.Cancel(), h.where)
		} else {
			require.NoError(h.t, one.res.Settle(h.rng.IntN(100)), h.where)
		}
		m.inUse = slices.DeleteFunc(m.inUse, func(u *use) bool { return u == one })
	case n < 19 && one != nil:
		if err := one.res.Extend(ctx); slices.Contains(m.inUse, one) {
			require.NoError(h.t, err, h.where)
			one.from = now
		} else {
			require.ErrorIs(h.t, err, ratelimit.ErrLost, h.where)
		}
	case n == 19:
		h.setLimits(ratelimit.Concurrent(1+h.rng.IntN(12), h.hold))
	case n == 20 && h.rng.IntN(4) == 0:
		h.otherAlgorithm(ctx)
	case n == 21 && h.rng.IntN(4) == 0:
		require.NoError(h.t, l.Reset(ctx, key), h.where)
		m.inUse = nil
	case n == 22 && h.rng.IntN(4) == 0:
		require.NoError(h.t, l.Adjust(ctx, key, 2), h.where)
		m.inUse = append(m.inUse, &use{n: 2, from: now})
	default:
		d, err := l.Peek(ctx, key, 1)
		require.NoError(h.t, err, h.where)
		require.Equal(h.t, used < m.units, d.Allowed, h.where)
		h.same(d, m, 1)
	}
}

// reserve reserves units, and compares the decision.
func (h *inUse) reserve(l Holder, m *counter, k int, key string, n int) {
	now := h.clock.Now()
	used, _ := m.at(now)
	r, err := l.Reserve(context.Background(), key, n, time.Duration(h.rng.IntN(2))*time.Hour)
	require.NoError(h.t, err, h.where)
	require.Equal(h.t, used+n <= m.units, r.Allowed, h.where)
	if r.Allowed {
		u := &use{n, now, r}
		h.made[k], m.inUse = append(h.made[k], u), append(m.inUse, u)
	}
	h.same(r.Decision, m, n)
}

// same compares a decision's figures with the counter's.
func (h *inUse) same(d ratelimit.Decision, m *counter, cost int) {
	now := h.clock.Now()
	used, _ := m.at(now)
	require.Equal(h.t, max(0, m.units-used), d.Remaining, h.where)
	require.Equal(h.t, max(0, used-m.units), d.Debt, h.where)
	require.Zero(h.t, d.Delay, h.where)
	h.near(m.back(now, min(used, 1)), d.ResetAfter, "ResetAfter")
	if d.Remaining == 0 {
		h.near(m.back(now, used+1-m.units), d.NextAfter, "NextAfter")
	}
	if d.Allowed {
		require.Zero(h.t, d.RetryAfter, h.where)
	} else {
		h.near(m.back(now, used+cost-m.units), d.RetryAfter, "RetryAfter")
	}
}

func (h *inUse) near(want, got time.Duration, figure string) {
	require.InDelta(h.t, want, got, float64(h.tick+1), "%s: %s", h.where, figure)
}

func (h *inUse) setLimits(limit ratelimit.Limit) {
	for _, l := range h.all {
		require.NoError(h.t, l.SetLimit(limit), h.where)
	}
	for _, m := range h.keys {
		m.units = limit.Rate.Units
	}
}

// otherAlgorithm changes all keys' limit to a rate and back. Afterwards no units are in use.
func (h *inUse) otherAlgorithm(ctx context.Context) {
	units := h.keys[0].units
	rates := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerHour(9), 9), ratelimit.LeakyBucket(ratelimit.PerHour(9), 9), ratelimit.FixedWindow(ratelimit.PerHour(9)),
		ratelimit.SlidingLog(ratelimit.PerHour(9)), ratelimit.SlidingCounter(ratelimit.PerHour(9)), ratelimit.Calendar(9, ratelimit.Day("UTC"))}
	rate := rates[h.rng.IntN(len(rates))]
	for _, l := range h.all {
		require.NoError(h.t, l.SetLimit(rate), h.where)
	}
	var spent []*ratelimit.Reservation
	for k, m := range h.keys {
		r, err := h.all[0].Reserve(ctx, fmt.Sprint("key", k), 3, 0)
		require.NoError(h.t, err, h.where)
		require.True(h.t, r.Allowed, "%s: %v", h.where, rate)
		spent, m.inUse = append(spent, r), nil
	}
	h.setLimits(ratelimit.Concurrent(units, h.hold))
	for k, m := range h.keys {
		h.reserve(h.all[0], m, k, fmt.Sprint("key", k), 1)
		require.NoError(h.t, spent[k].Settle(h.rng.IntN(5)), h.where)
	}
}
