package ratelimit_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// heavy is a limiter with one key that has n spendings to its name, each at an instant of its
// own: in the window of a sliding log, or booked ahead.
type heavy struct {
	l     *ratelimit.Keyed[string]
	clock *testClock
	all   []*ratelimit.Reservation
}

func spentHeavily(t testing.TB, n int) *heavy {
	h := newHeavy(t, ratelimit.SlidingLog(ratelimit.PerDay(n)))
	for range n {
		h.clock.now.Add(int64(time.Microsecond))
		require.True(t, h.l.Allow("k", 1))
	}
	return h
}

func bookedHeavily(t testing.TB, limit ratelimit.Limit, n int) *heavy {
	h := newHeavy(t, limit)
	for range n {
		h.all = append(h.all, h.book(t))
	}
	return h
}

func newHeavy(t testing.TB, limit ratelimit.Limit) *heavy {
	clock := &testClock{}
	l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	return &heavy{l: l, clock: clock}
}

// book books one cost behind the others.
func (h *heavy) book(t testing.TB) *ratelimit.Reservation {
	r, err := h.l.Reserve(t.Context(), "k", 1, math.MaxInt64)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	return r
}

// manyBooked are limits that book one cost after the other, each at an instant of its own.
func manyBooked() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 3),
		ratelimit.LeakyBucket(ratelimit.PerSecond(1), 1_000_000_000),
		ratelimit.FixedWindow(ratelimit.PerSecond(1)),
		ratelimit.SlidingLog(ratelimit.PerSecond(1)),
		ratelimit.SlidingCounter(ratelimit.PerSecond(1)),
	}
}

// BenchmarkGrowth shows what a call under a key's lock costs against the number of that key's
// spendings. SetLimit is linear, and so is a cancel, in the bookings behind it; the others are
// not: benchstat -row /entries -col /call.
func BenchmarkGrowth(b *testing.B) {
	for n := 100; n <= most(); n *= 10 {
		growLog(b, n)
		for _, limit := range manyBooked() {
			growBookings(b, limit, n)
		}
	}
}

func growLog(b *testing.B, n int) {
	h := spentHeavily(b, n)
	run := func(call string, f func()) {
		b.Run(fmt.Sprintf("call=%s/entries=%d", call, n), func(b *testing.B) {
			for b.Loop() {
				f()
			}
		})
	}
	run("deny", func() { _, _ = h.l.Take(b.Context(), "k", n) })
	run("allow", func() {
		h.clock.now.Add(int64(24 * time.Hour / time.Duration(n)))
		h.l.Allow("k", 1)
	})
	h = spentHeavily(b, n)
	h.clock.now.Add(int64(24*time.Hour) - int64(n/2)*int64(time.Microsecond))
	run("peekHalfExpired", func() { _, _ = h.l.Peek("k", n) })
	h.clock.now.Add(int64(48 * time.Hour))
	run("peekExpired", func() { _, _ = h.l.Peek("k", n) })
}

func growBookings(b *testing.B, limit ratelimit.Limit, n int) {
	h := bookedHeavily(b, limit, n)
	name := func(call string) string {
		return fmt.Sprintf("call=%s/algorithm=%v/entries=%d", call, limit.Algorithm, n)
	}
	cancel := func(call string, pick func(i int) int) {
		b.Run(name(call), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r := &h.all[pick(i)]
				_ = (*r).Cancel()
				*r = h.book(b)
			}
		})
	}
	cancel("cancelFirst", func(i int) int { return i % n })
	cancel("cancelMiddle", func(i int) int { return (n/2 + i) % n })
	cancel("cancelLast", func(int) int { return n - 1 })
	h = bookedHeavily(b, limit, n)
	b.Run(name("setLimit"), func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			limit.Rate.Units = 2 + i%2
			_ = h.l.SetLimit(limit)
			h.l.Allow("k", 1)
		}
	})
}
