package redislimit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
)

// tightenings are pairs of limits. The second one of a pair regains a hundred times more slowly.
func tightenings() (pairs [][2]ratelimit.Limit) {
	quick := []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(20, 200*time.Millisecond), 20),
		ratelimit.LeakyBucket(ratelimit.Per(20, 200*time.Millisecond), 20),
		ratelimit.FixedWindow(ratelimit.Per(20, 200*time.Millisecond)),
		ratelimit.SlidingLog(ratelimit.Per(20, 200*time.Millisecond)),
		ratelimit.SlidingCounter(ratelimit.Per(20, 200*time.Millisecond)),
	}
	for _, from := range quick {
		for _, to := range quick {
			to.Rate.Per *= 100_000
			pairs = append(pairs, [2]ratelimit.Limit{from, to})
		}
	}
	return pairs
}

// Keys expire by the server's own clock, so this test waits for their expiry, once for all limits.
func TestATightenedLimitForgivesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	type denial struct {
		what string
		take func() (ratelimit.Decision, error)
		at   time.Time     // the time before which nothing is allowed
		wide time.Duration // the possible error of at, because the calls took so long
	}
	var all []denial
	key := ""
	add := func(what string, charged func() func() (ratelimit.Decision, error)) {
		for try := 0; ; try++ {
			key = fmt.Sprint(len(all), "-", try)
			before := time.Now()
			take := charged()
			d, err := take()
			require.NoError(t, err)
			if d.Allowed && time.Since(before) > 100*time.Millisecond {
				continue // on this busy machine the cost was regained under the old limit
			}
			require.False(t, d.Allowed, what)
			if assert.Greater(t, d.RetryAfter, time.Minute, what) {
				all = append(all, denial{what, take, before.Add(d.RetryAfter), time.Since(before)})
			}
			return
		}
	}
	ctx := t.Context()
	for _, pair := range tightenings() {
		from, to := pair[0], pair[1]
		what := fmt.Sprintf("%v to %v", from, to)
		limiter := func(kind string, limit ratelimit.Limit) *Limiter {
			l, err := New(f.client, limit, &Options{Name: kind, Timeout: 20 * time.Second})
			require.NoError(t, err)
			return l
		}
		take := func(l interface {
			Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error)
		}) func() (ratelimit.Decision, error) {
			key := key
			return func() (ratelimit.Decision, error) { return l.Take(ctx, key, 1) }
		}
		charge := func(l *Limiter) { require.NoError(t, l.Adjust(ctx, key, 40)) }

		add(what+", SetLimit", func() func() (ratelimit.Decision, error) {
			l := limiter("set", from)
			charge(l)
			require.NoError(t, l.SetLimit(to))
			return take(l)
		})
		add(what+", another node", func() func() (ratelimit.Decision, error) {
			charge(limiter("nodes", from))
			return take(limiter("nodes", to))
		})
		add(what+", Reserve", func() func() (ratelimit.Decision, error) {
			charge(limiter("reserve", from))
			booking, key := limiter("reserve", to), key
			return func() (ratelimit.Decision, error) {
				r, err := booking.Reserve(context.Background(), key, 1, time.Millisecond)
				return r.Decision, err
			}
		})
		add(what+", LimitFor", func() func() (ratelimit.Decision, error) {
			l, err := New(f.client, from, &Options{Name: "for", Timeout: 20 * time.Second, LimitFor: func(string) ratelimit.Limit { return to }})
			require.NoError(t, err)
			charge(limiter("for", from))
			return take(l)
		})
		add(what+", a stack", func() func() (ratelimit.Decision, error) {
			stack, err := ratelimit.All(ratelimit.By(limiter("other", from), identity), ratelimit.By(limiter("stack", to), identity))
			require.NoError(t, err)
			charge(limiter("stack", from))
			return take(stack)
		})
		add(what+", a limit of the request", func() func() (ratelimit.Decision, error) {
			limited, err := ratelimit.All(model.WithLimit(ratelimit.By(limiter("limited", from), identity), func(string) ratelimit.Limit { return to }))
			require.NoError(t, err)
			charge(limiter("limited", from))
			return take(limited)
		})
	}
	time.Sleep(1300 * time.Millisecond) // by then the state stored under the old limit has expired
	for _, k := range all {
		now := time.Now()
		d, err := k.take()
		require.NoError(t, err)
		assert.False(t, d.Allowed, k.what)
		wide := 2*time.Second + k.wide + time.Since(now)
		assert.InDelta(t, k.at.Sub(now).Seconds(), d.RetryAfter.Seconds(), wide.Seconds(), k.what)
	}
}

// Denials under a tightened limit write a time to live once, and a note once.
func TestADenialUnderATightenedLimitWritesOnce(t *testing.T) {
	f := newFixture(t)
	for i, pair := range tightenings() {
		pair[0].Rate.Per *= 100 // so slow that nothing is regained during the test
		l, err := New(f.client, pair[0], &Options{Name: fmt.Sprint("once", i), Timeout: 20 * time.Second})
		require.NoError(t, err)
		require.NoError(t, l.Adjust(t.Context(), "k", 40))
		require.NoError(t, l.SetLimit(pair[1]))
		f.resetStats()
		for range 4 {
			require.False(t, l.Allow("k", 1))
		}
		stats := f.stats()
		assert.Equal(t, 1, stats["set"], "%v", pair)
		assert.Equal(t, 1, stats["append"], "%v", pair)
		assert.Zero(t, stats["setrange"]+stats["pexpire"])
		needed, err := l.Peek(t.Context(), "k", 0)
		require.NoError(t, err)
		life, err := f.client.PTTL(t.Context(), l.space.key("k")).Result()
		require.NoError(t, err)
		assert.GreaterOrEqual(t, life, needed.ResetAfter-time.Second, "%v", pair)
		assert.LessOrEqual(t, life, 2*needed.ResetAfter+time.Second, "%v", pair)
	}
}

// A booking under one limit keeps its instant under the next, and leaves as much room before it as in memory.
func TestBookingsAheadOutliveAChangeOfRate(t *testing.T) {
	f := newFixture(t)
	for i, from := range changing() {
		for j, to := range changing() {
			if from.Algorithm == ratelimit.AlgorithmLeakyBucket || to.Algorithm == ratelimit.AlgorithmLeakyBucket {
				continue // the queue is the debt of a leaky bucket
			}
			what := fmt.Sprintf("%v to %v", from, to)
			memory, err := ratelimit.New(from, &ratelimit.Options[string]{Clock: f.clock})
			require.NoError(t, err)
			l := f.limiter(from, fmt.Sprintf("ahead%d-%d", i, j))
			var booked time.Duration
			for range 5 {
				r, err := l.Reserve(t.Context(), "k", from.Capacity(), 24*time.Hour)
				require.NoError(t, err)
				m, err := memory.Reserve(t.Context(), "k", from.Capacity(), 24*time.Hour)
				require.NoError(t, err)
				require.True(t, r.Allowed, what)
				require.InDelta(t, m.Delay.Seconds(), r.Delay.Seconds(), 1e-3)
				booked = r.Delay
			}
			require.NoError(t, l.SetLimit(to))
			require.NoError(t, memory.SetLimit(to))
			for booked > time.Millisecond {
				m, err := memory.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				d, err := l.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				assert.InDelta(t, m.RetryAfter.Seconds(), d.RetryAfter.Seconds(), 1e-3, "%s: with a booking %v ahead\n%+v on Redis\n%+v in memory", what, booked, d, m)
				assert.InDelta(t, m.Remaining, d.Remaining, 1, "%s, %v ahead", what, booked)
				half := (booked / 2).Truncate(time.Microsecond)
				f.clock.Advance(half)
				booked -= half
			}
			f.clock.Advance(time.Hour)
		}
	}
}

// A denied booking on a log is decided like a denied Take: by a search on the server.
func TestADeniedBookingOnALogReadsAPartOfIt(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.SlidingLog(ratelimit.PerHour(2000)), "bookings")
	for range 2000 {
		f.clock.Advance(time.Microsecond)
		require.True(t, l.Allow("k", 1))
	}
	calls := map[string]func() bool{
		"Take":    func() bool { return l.Allow("k", 1) },
		"Reserve": func() bool { r, err := l.Reserve(t.Context(), "k", 1, time.Minute); return err == nil && r.Allowed },
		"Wait": func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return l.Wait(ctx, "k", 1) == nil
		},
		"Reserve of many": func() bool { r, err := l.Reserve(t.Context(), "k", 1500, time.Minute); return err == nil && r.Allowed },
	}
	for name, call := range calls {
		call()
		f.resetStats()
		assert.False(t, call(), name)
		stats := f.stats()
		assert.Zero(t, stats["get"], "%s reads the whole log", name)
		assert.LessOrEqual(t, stats["getrange"], 30, name)
	}
	r, err := l.Reserve(t.Context(), "k", 1, time.Hour)
	require.NoError(t, err)
	assert.True(t, r.Allowed)
}

// When the limit of a tightened log is raised again, its debt waits no longer than a new one would.
func TestARaisedLogPlacesItsDebtAnew(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(12)), "raised")
	require.True(t, l.Allow("k", 3))
	require.NoError(t, l.SetLimit(ratelimit.SlidingLog(ratelimit.PerHour(2))))
	require.False(t, l.Allow("k", 1))
	require.NoError(t, l.Adjust(t.Context(), "k", 1)) // this puts the key under the limit
	require.NoError(t, l.SetLimit(ratelimit.SlidingLog(ratelimit.PerHour(8))))
	assert.Equal(t, 4, f.left(l, "k"))
	require.NoError(t, l.Adjust(t.Context(), "k", 6))
	assert.Zero(t, f.left(l, "k"))
	f.clock.Advance(time.Hour)
	assert.Equal(t, 2, f.left(l, "k"), "the 6 did not fit before")
}
