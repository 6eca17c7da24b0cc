package linetest

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Opener returns a limiter of one process. All limiters of a test share one budget in a store.
type Opener func(t *testing.T, limit ratelimit.Limit, limitFor func(string) ratelimit.Limit) Budget

// late is the maximum delay of a busy machine.
const late = 1500 * time.Millisecond

// bookings are one test's waiting reservations, in real time.
type bookings struct {
	*testing.T
	open  func(limitFor func(string) ratelimit.Limit) Budget
	here  Budget // the limiter in the reserving process
	spent *ratelimit.Reservation
	all   []*ratelimit.Reservation
	wg    sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	begin  time.Time
	served []time.Duration // when each reservation was served, -1 if it was not
	errs   []error
}

// comes adds n waiting reservations.
func (b *bookings) comes(ctx context.Context, n, cost int) {
	b.restart()
	for range n {
		i := len(b.all)
		r, err := b.here.Reserve(b.Context(), "k", cost, math.MaxInt64)
		require.NoError(b, err)
		require.True(b, r.Allowed)
		b.all = append(b.all, r)
		b.mu.Lock()
		b.served = append(b.served, -1)
		b.mu.Unlock()
		b.wg.Go(func() {
			err := r.Wait(ctx)
			b.mu.Lock()
			defer b.mu.Unlock()
			if err != nil {
				b.errs = append(b.errs, err)
			} else {
				b.served[i] = time.Since(b.begin)
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // until these reservations wait
	b.restart()
}

// restart sets the origin of all times to now.
func (b *bookings) restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begin = time.Now()
}

// requireServed waits until n callers were served. It checks their
// order, the time of the last one, and that no others were served.
func (b *bookings) requireServed(n int, last time.Duration) {
	b.Helper()
	var served int
	var at, before time.Duration
	count := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		served, at, before = 0, 0, 0
		for i, d := range b.served {
			if d < 0 {
				continue
			}
			served++
			assert.GreaterOrEqual(b, d, before-late/3, "the reservation %d", i)
			at, before = max(at, d), max(before, d)
		}
	}
	for count(); served < n && time.Since(b.begin) < last+late; count() {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond)
	count()
	require.Equal(b, n, served)
	require.GreaterOrEqual(b, at, last-late/3) // the measurement may begin late
	require.LessOrEqual(b, at, last+late)
}

// requireFailed waits until n callers have failed, all with the given error.
func (b *bookings) requireFailed(n int, target error) {
	b.Helper()
	failed := func() []error {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.errs
	}
	require.Eventually(b, func() bool { return len(failed()) >= n }, late, 10*time.Millisecond)
	require.Len(b, failed(), n)
	for _, err := range failed() {
		require.ErrorIs(b, err, target)
	}
}

func (b *bookings) set(limit ratelimit.Limit) { require.NoError(b, b.here.SetLimit(limit)) }

func hourly(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(n), n) }

// booked are changes of a fully spent budget.
var booked = []struct {
	name  string
	limit ratelimit.Limit
	test  func(b *bookings)
}{
	{"a raise", bucket(1, 1), func(b *bookings) {
		b.comes(b.Context(), 100, 1)
		b.set(bucket(100, 1))
		b.requireServed(100, time.Second)
	}},
	{"a raise of a window", ratelimit.FixedWindow(ratelimit.PerSecond(1)), func(b *bookings) {
		b.comes(b.Context(), 50, 1)
		b.set(ratelimit.FixedWindow(ratelimit.PerSecond(100)))
		b.requireServed(50, 0)
	}},
	{"a raise of a log", ratelimit.SlidingLog(ratelimit.PerSecond(1)), func(b *bookings) {
		b.comes(b.Context(), 50, 1)
		b.set(ratelimit.SlidingLog(ratelimit.PerSecond(100)))
		b.requireServed(50, 0)
	}},
	{"a raise of a counter", ratelimit.SlidingCounter(ratelimit.PerSecond(1)), func(b *bookings) {
		b.comes(b.Context(), 50, 1)
		b.set(ratelimit.SlidingCounter(ratelimit.PerSecond(100)))
		b.requireServed(50, 0)
	}},
	{"a raise of a queue", ratelimit.LeakyBucket(ratelimit.PerSecond(1), 100), func(b *bookings) {
		b.comes(b.Context(), 20, 1)
		b.set(ratelimit.LeakyBucket(ratelimit.PerSecond(100), 100))
		b.requireServed(20, 200*time.Millisecond)
	}},
	{"a brake", bucket(20, 1), func(b *bookings) {
		b.comes(b.Context(), 40, 1)
		b.set(bucket(1, 1))
		b.requireServed(40, 1900*time.Millisecond)
	}},
	{"a blocked key", hourly(10), func(b *bookings) {
		b.comes(b.Context(), 20, 1)
		b.set(ratelimit.Blocked())
		b.requireFailed(20, ratelimit.ErrBlocked)
	}},
	{"no limit", hourly(10), func(b *bookings) {
		b.comes(b.Context(), 20, 1)
		b.set(ratelimit.Unlimited())
		b.requireServed(20, 0)
	}},
	{"a limit below a cost", hourly(10), func(b *bookings) {
		b.comes(b.Context(), 1, 5)
		b.comes(b.Context(), 1, 10)
		b.comes(b.Context(), 1, 5)
		b.set(hourly(9))
		b.requireFailed(1, ratelimit.ErrExceedsLimit)
	}},
	{"a grant", hourly(10), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.here.Adjust(b.Context(), "k", -5))
		b.requireServed(5, 0)
		r, err := b.open(nil).Reserve(b.Context(), "k", 1, math.MaxInt64)
		require.NoError(b, err)
		require.InDelta(b, 8, r.Delay.Minutes()/6, .1, "behind the seven that wait")
	}},
	{"a grant to a window", ratelimit.FixedWindow(ratelimit.PerHour(10)), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.here.Adjust(b.Context(), "k", -5))
		b.requireServed(5, 0)
	}},
	{"a grant of a whole window", ratelimit.FixedWindow(ratelimit.PerHour(10)), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.here.Adjust(b.Context(), "k", -10))
		b.requireServed(9, 0) // the last booking loses one unit, and the window continues
	}},
	{"a grant to a counter", ratelimit.SlidingCounter(ratelimit.PerHour(10)), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.here.Adjust(b.Context(), "k", -5))
		b.requireServed(5, 0)
	}},
	{"a grant to a log", ratelimit.SlidingLog(ratelimit.PerHour(10)), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.here.Adjust(b.Context(), "k", -5))
		b.requireServed(5, 0)
	}},
	{"a later reservation after a raise", hourly(10), func(b *bookings) {
		require.NoError(b, b.spent.Settle(0))
		other := b.open(nil)
		spent, err := other.Reserve(b.Context(), "k", 10, 0)
		require.NoError(b, err)
		require.True(b, spent.Allowed)
		b.comes(b.Context(), 2, 10)
		b.set(hourly(15))
		require.NoError(b, other.SetLimit(hourly(15)))
		time.Sleep(300 * time.Millisecond)
		require.NoError(b, spent.Settle(8)) // waiting calls notice the change within a second
		r, err := b.here.Reserve(b.Context(), "k", 1, math.MaxInt64)
		require.NoError(b, err)
		require.Greater(b, r.Delay, 30*time.Minute, "it overtakes those who wait")
		r, err = other.Reserve(b.Context(), "k", 1, math.MaxInt64)
		require.NoError(b, err)
		require.Zero(b, r.Delay, "the room before them is there for others")
	}},
	{"a settlement", hourly(10), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.spent.Settle(6))
		b.requireServed(4, 0)
	}},
	{"another process's settlement", hourly(20), func(b *bookings) {
		require.NoError(b, b.spent.Settle(10))
		r, err := b.open(nil).Reserve(b.Context(), "k", 10, 0)
		require.NoError(b, err)
		require.True(b, r.Allowed)
		b.comes(b.Context(), 12, 1)
		require.NoError(b, r.Settle(6))
		b.requireServed(4, 0)
	}},
	{"a reset", hourly(10), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.here.Reset(b.Context(), "k"))
		b.requireServed(10, 0)
	}},
	{"another process's reset", hourly(10), func(b *bookings) {
		b.comes(b.Context(), 12, 1)
		require.NoError(b, b.open(nil).Reset(b.Context(), "k"))
		b.requireServed(10, time.Second)
	}},
	{"leavers", bucket(2, 2), func(b *bookings) {
		gone, leave := context.WithCancel(b.Context())
		b.comes(gone, 20, 1)
		b.comes(gone, 5, 2)
		b.comes(b.Context(), 4, 1)
		leave()
		b.requireFailed(25, context.Canceled)
		b.requireServed(4, 2*time.Second)
	}},
	{"reservations that are cancelled", bucket(2, 2), func(b *bookings) {
		var idle []*ratelimit.Reservation
		for range 20 {
			r, err := b.here.Reserve(b.Context(), "k", 1, math.MaxInt64)
			require.NoError(b, err)
			idle = append(idle, r)
		}
		b.comes(b.Context(), 4, 1)
		for _, r := range idle {
			require.NoError(b, r.Cancel())
		}
		b.requireServed(4, 2*time.Second)
	}},
	{"calls that leave at once", hourly(10), func(b *bookings) {
		gone, leave := context.WithCancel(b.Context())
		b.comes(gone, 50, 1)
		b.set(hourly(1000))
		leave()
		b.wg.Wait()
		b.set(hourly(10))
		r, err := b.here.Reserve(b.Context(), "k", 1, math.MaxInt64)
		require.NoError(b, err)
		require.LessOrEqual(b, r.Delay, 6*time.Minute, "nothing stays booked")
	}},
}

// Booked tests that waiting reservations follow changes of their budget, in real time.
func (s Opener) Booked(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds of real time")
	}
	testsize.Alone(t)
	run := func(name string, limit ratelimit.Limit, limitFor func(string) ratelimit.Limit, test func(b *bookings)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := limit.Named(strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", ""))
			b := &bookings{T: t, open: func(limitFor func(string) ratelimit.Limit) Budget { return s(t, limit, limitFor) }}
			b.here = b.open(limitFor)
			var err error
			cost := limit.Capacity()
			if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
				cost = 1
			}
			b.spent, err = b.here.Reserve(t.Context(), "k", cost, 0)
			require.NoError(t, err)
			require.True(t, b.spent.Allowed)
			test(b)
		})
	}
	for _, c := range booked {
		run(c.name, c.limit, nil, c.test)
	}
	var raised atomic.Bool
	run("another process's raise", bucket(1, 1), func(string) ratelimit.Limit { // through LimitFor: all processes read it
		if raised.Load() {
			return bucket(100, 1)
		}
		return bucket(1, 1)
	}, func(b *bookings) {
		b.comes(b.Context(), 100, 1)
		raised.Store(true)
		b.requireServed(100, time.Second)
	})
}

// Dead is a process that has booked ahead and died. The limit is 10 units a second, with a burst of 1.
type Dead struct {
	Limiter, Other Budget
	Advance        func(time.Duration)
	Raised         bool // whether the other process has raised the limit
}

// Test checks how long other processes have to wait.
func (d Dead) Test(t *testing.T) {
	const ahead = 2 * time.Second
	require.True(t, d.Limiter.Allow("k", 1))
	booked := 0
	for ; ; booked++ {
		r, err := d.Limiter.Reserve(t.Context(), "k", 1, ahead)
		require.NoError(t, err)
		if !r.Allowed {
			break
		}
	}
	require.Equal(t, 20, booked)
	require.True(t, d.Other.Allow("another key", 1))
	rate := 10
	if d.Raised {
		rate = 100
		require.NoError(t, d.Other.SetLimit(bucket(rate, 1)))
	}
	passed := func() (n int) {
		for range rate { // one second's units
			d.Advance(time.Second / time.Duration(rate))
			if d.Other.Allow("k", 1) {
				n++
			}
		}
		return n
	}
	if !d.Raised {
		r, err := d.Other.Reserve(t.Context(), "k", 1, ahead)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, 100*time.Millisecond, r.RetryAfter, "one unit behind the last booking")
	}
	for range 2 {
		n := passed()
		if d.Raised {
			require.InDelta(t, rate-10, n, 2, "a booking takes its own cost alone")
		} else {
			require.Zero(t, n)
		}
	}
	require.InDelta(t, rate, passed(), 1)
}
