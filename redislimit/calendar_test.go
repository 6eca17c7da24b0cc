package redislimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func calendarTwins() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.Calendar(10, ratelimit.Day("UTC")), ratelimit.Calendar(7, ratelimit.Day("Europe/Berlin")),
		ratelimit.Calendar(3, ratelimit.Week("America/New_York", time.Monday)), ratelimit.Calendar(1, ratelimit.Month("UTC", 1)),
		ratelimit.Calendar(20, ratelimit.Month("Europe/Berlin", 31)), ratelimit.Calendar(5, ratelimit.Day("America/Havana")),
		ratelimit.Calendar(5, ratelimit.Day("Europe/Berlin").At(4*time.Hour)), ratelimit.Calendar(50, ratelimit.Year("UTC")),
	}
}

// newDatedTwin sets the clock to a random instant, and makes the wall clock in memory equal the server's.
func newDatedTwin(t *testing.T, w *twin, seed uint64) *twin {
	w.clock.SetWall(time.UnixMicro(epoch))
	w.clock.Set(time.Duration(rand.New(rand.NewPCG(testsize.Seed(seed), 5)).Int64N(int64(10*365*24*time.Hour/time.Microsecond))) * time.Microsecond)
	w.nearby = true
	return w
}

func TestCalendarsAnswerAsInMemory(t *testing.T) {
	verdicts(t)
	client := startServer(t).client()
	for i, limit := range calendarTwins() {
		t.Run(limit.String(), func(t *testing.T) {
			for seed := range histories(6) {
				w := newDatedTwin(t, newTwin(t, client, limit, fmt.Sprintf("dated%d-%d", i, seed), uint64(seed)), uint64(seed))
				for n := range 120 {
					w.step(n)
				}
			}
		})
	}
}

// datedPair is a limiter in Redis and one in memory, at an instant.
func datedPair(t *testing.T, limit ratelimit.Limit, at time.Time) (*Limiter, *ratelimittest.Clock) {
	clock := new(ratelimittest.Clock)
	clock.SetWall(time.UnixMicro(epoch))
	clock.Advance(at.Sub(clock.Wall()))
	l, err := New(startServer(t).client(), limit, &Options{Name: "dated", Timeout: 10 * time.Second})
	require.NoError(t, err)
	return onClock(l, clock), clock
}

func TestACalendarOnRedis(t *testing.T) {
	verdicts(t)
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	l, clock := datedPair(t, ratelimit.Calendar(10, ratelimit.Day("Europe/Berlin")), time.Date(2026, 10, 25, 0, 0, 0, 0, berlin))
	d, err := l.Take(t.Context(), "k", 10)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	d, err = l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 25*time.Hour, d.RetryAfter)
	clock.Advance(25*time.Hour - time.Microsecond)
	assert.False(t, l.Allow("k", 1))
	clock.Advance(time.Microsecond)
	assert.True(t, l.Allow("k", 10))
}

// A booking on Redis begins with the next window at the latest.
func TestNothingIsBookedBeyondTheNextWindow(t *testing.T) {
	verdicts(t)
	l, _ := datedPair(t, ratelimit.Calendar(10, ratelimit.Day("UTC")), time.Date(2026, 5, 20, 18, 0, 0, 0, time.UTC))
	require.True(t, l.Allow("k", 6))
	r, err := l.Reserve(t.Context(), "k", 6, 100*time.Hour)
	require.NoError(t, err)
	assert.Equal(t, 6*time.Hour, r.Delay)
	r, err = l.Reserve(t.Context(), "k", 6, 100*time.Hour)
	require.NoError(t, err)
	assert.False(t, r.Allowed)
	assert.Equal(t, 6*time.Hour, r.RetryAfter)
}

// A caller whose clock is wrong by more than a window calls again, and uses the server's time.
func TestTheServersTimeChoosesTheWindow(t *testing.T) {
	verdicts(t)
	l, _ := datedPair(t, ratelimit.Calendar(10, ratelimit.Day("UTC")), time.Date(2026, 5, 20, 18, 0, 0, 0, time.UTC))
	for _, skew := range []time.Duration{0, -5 * time.Hour, 5 * time.Hour, -24 * time.Hour, 24 * time.Hour, -1000 * time.Hour, 100_000 * time.Hour} {
		wrong := func() { l.store.skew.Store(skew.Microseconds()) }
		wrong()
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err, skew)
		assert.Equal(t, 6*time.Hour, d.ResetAfter, skew)
		wrong()
		r, err := l.Reserve(t.Context(), "k", 1, 0)
		require.NoError(t, err, skew)
		wrong()
		require.NoError(t, r.Cancel(), skew)
		wrong()
		require.NoError(t, l.Adjust(t.Context(), "k", 1), skew)
		require.NoError(t, l.Adjust(t.Context(), "k", -2), skew)
	}
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 10, d.Remaining)
}

// Options.Timeout bounds a decision and a settlement as a whole, even if they take several calls.
func TestARepeatedCallHasNoTimeoutOfItsOwn(t *testing.T) {
	for _, heeds := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: startServer(t).addr, ContextTimeoutEnabled: heeds})
		t.Cleanup(func() { client.Close() })
		var seen deadlines
		if heeds {
			client.AddHook(&seen)
		}
		l, err := New(client, ratelimit.Calendar(10, ratelimit.Day("UTC")), &Options{Name: "again", Timeout: 10 * time.Second, Hooks: []redis.Hook{&seen}})
		require.NoError(t, err)
		for _, call := range []func() error{
			func() error { _, err := l.Take(t.Context(), "k", 1); return err },
			func() error { return l.Adjust(t.Context(), "k", 1) },
		} {
			require.NoError(t, call()) // after this the server knows the scripts
			l.store.skew.Store((1000 * time.Hour).Microseconds())
			seen = nil
			require.NoError(t, call())
			require.Len(t, seen, 2)
			assert.Equal(t, seen[0], seen[1])
		}
	}
}

// deadlines is a hook. It records each call's deadline.
type deadlines []time.Time

func (h *deadlines) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *deadlines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *deadlines) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			at, _ := ctx.Deadline()
			*h = append(*h, at)
		}
		return next(ctx, cmd)
	}
}

func TestACalendarByTheServersOwnTime(t *testing.T) {
	p := ratelimit.Month("UTC", 1)
	l, err := New(startServer(t).client(), ratelimit.Calendar(5, p), &Options{Name: "real", Timeout: 10 * time.Second})
	require.NoError(t, err)
	l.store.skew.Store((1000 * time.Hour).Microseconds())
	d, err := l.Take(t.Context(), "k", 5)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	_, to := p.Window(time.Now())
	assert.InDelta(t, time.Until(to), d.ResetAfter, float64(time.Minute))
	assert.InDelta(t, 0, l.store.skew.Load(), 1e6)
}

// Limits change from one calendar to another, and to and from windows and buckets. After
// the first change to another kind of limit, the spending is the same as in memory.
func TestAChangeToAndFromACalendarIsAsInMemory(t *testing.T) {
	verdicts(t)
	client := startServer(t).client()
	others := []ratelimit.Limit{ratelimit.FixedWindow(ratelimit.Per(8, 26*time.Hour)), ratelimit.TokenBucket(ratelimit.Per(10, 10*time.Hour), 6)}
	limits := append(calendarTwins(), others...)
	for seed := range histories(120) {
		w := newTwin(t, client, limits[seed%len(calendarTwins())], fmt.Sprintf("changes%d", seed), uint64(seed))
		newDatedTwin(t, w, uint64(seed))
		left := false
		for n := range 60 {
			if n%6 == 5 {
				if seed%2 == 0 {
					w.fill(2 + w.rng.IntN(2))
				}
				limit := limits[w.rng.IntN(len(limits))]
				if limit.Algorithm == ratelimit.AlgorithmCalendar {
					_, next := limit.Period.Window(w.clock.Wall())
					if _, end := limit.Period.Window(next); w.newest-w.clock.Now() >= end.Sub(w.clock.Wall()) {
						continue // Redis counts a later booking against the caller
					}
				}
				if !model.Alike(w.limit, limit) {
					if left { // in memory, former limits go on counting
						w.memory.Reset(t.Context(), twinKey)
						require.NoError(t, w.remote.Reset(t.Context(), twinKey))
					}
					left = true
				}
				w.limit = limit
				w.nearby = w.limit.Algorithm == ratelimit.AlgorithmCalendar
				w.note("SetLimit(%v)", w.limit)
				require.NoError(t, w.memory.SetLimit(w.limit))
				require.NoError(t, w.remote.SetLimit(w.limit))
				d, err := w.memory.Take(t.Context(), twinKey, 1)
				e, err2 := w.remote.Take(t.Context(), twinKey, 1)
				w.same("Take(1)", d, e, err, err2)
				require.NoError(t, w.memory.Adjust(context.Background(), twinKey, 1)) // a denial would not be stored
				require.NoError(t, w.remote.Adjust(t.Context(), twinKey, 1))
				w.open = nil // refunds after a change differ
			}
			w.booking = seed%2 == 0
			w.step(n)
		}
	}
}

// A booking keeps its window when the limit becomes a calendar, even if Redis does not know this window
// yet. No unit is left before the booking, and in its window at most the rest of the window's units.
func TestABookingKeepsItsWindowWhenTheLimitBecomesACalendar(t *testing.T) {
	verdicts(t)
	week := ratelimit.Calendar(3, ratelimit.Week("UTC", time.Monday))
	for _, days := range []int{2, 9, 16, 23, 40} {
		for cost := 1; cost <= 3; cost++ {
			booked := ratelimit.FixedWindow(ratelimit.Per(3, time.Duration(days)*24*time.Hour))
			l, clock := datedPair(t, booked, time.Date(2026, 6, 3, 0, 0, 0, 0, time.UTC)) // a Wednesday
			memory, err := ratelimit.New(booked, &ratelimit.Options[string]{Clock: clock})
			require.NoError(t, err)
			require.True(t, l.Allow("k", 3) && memory.Allow("k", 3))
			reserved := make(map[time.Time]int)
			for range 2 {
				r, err := memory.Reserve(t.Context(), "k", cost, 2000*time.Hour)
				require.NoError(t, err)
				q, err := l.Reserve(t.Context(), "k", cost, 2000*time.Hour)
				require.NoError(t, err)
				require.Equal(t, r.Decision, q.Decision)
				begins, _ := week.Period.Window(clock.Wall().Add(r.Delay))
				reserved[begins] += cost
			}
			require.NoError(t, memory.SetLimit(week))
			require.NoError(t, l.SetLimit(week))
			require.False(t, memory.Allow("k", 1) || l.Allow("k", 1))
			for range 15 * 7 {
				d, err := memory.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				e, err := l.Peek(t.Context(), "k", 1)
				require.NoError(t, err)
				what := fmt.Sprintf("%d days, cost %d, at %v", days, cost, clock.Wall())
				begins, _ := week.Period.Window(clock.Wall())
				require.LessOrEqual(t, e.Remaining, max(0, 3-reserved[begins]), what)
				require.LessOrEqual(t, d.RetryAfter-e.RetryAfter, 7*24*time.Hour, what) // in memory other costs go before bookings
				clock.Advance(24 * time.Hour)
			}
		}
	}
}

func TestCalendarsInAStack(t *testing.T) {
	verdicts(t)
	client := startServer(t).client()
	clock := new(ratelimittest.Clock)
	clock.SetWall(time.UnixMicro(epoch))
	clock.Advance(time.Date(2026, 3, 28, 20, 0, 0, 0, time.UTC).Sub(clock.Wall()))
	limits := []ratelimit.Limit{ratelimit.Calendar(9, ratelimit.Day("Europe/Berlin")), ratelimit.TokenBucket(ratelimit.PerHour(5), 5), ratelimit.Calendar(20, ratelimit.Month("UTC", 15))}
	var far []ratelimit.Layer[string]
	var near []ratelimit.Layer[string]
	key := func(s string) (string, error) { return s, nil }
	for i, limit := range limits {
		l, err := New(client, limit, &Options{Name: fmt.Sprint("layer", i), Timeout: 10 * time.Second})
		require.NoError(t, err)
		far = append(far, ratelimit.By(onClock(l, clock), key))
		m, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
		require.NoError(t, err)
		near = append(near, ratelimit.By(m, key))
	}
	remote, err := ratelimit.All(far...)
	require.NoError(t, err)
	memory, err := ratelimit.All(near...)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		cost := 1 + rng.IntN(5)
		d, err := memory.Take(t.Context(), "k", cost)
		require.NoError(t, err)
		e, err := remote.Take(t.Context(), "k", cost)
		require.NoError(t, err)
		require.Equal(t, d, e)
		if rng.IntN(3) == 0 {
			r, err := memory.Reserve(t.Context(), "k", cost, 0)
			require.NoError(t, err)
			q, err := remote.Reserve(t.Context(), "k", cost, 0)
			require.NoError(t, err)
			require.Equal(t, r.Decision, q.Decision)
			require.NoError(t, r.Settle(1))
			require.NoError(t, q.Settle(1))
		}
		clock.Advance([]time.Duration{0, time.Minute, time.Hour, d.RetryAfter, 50 * time.Hour}[rng.IntN(5)] / time.Microsecond * time.Microsecond)
	}
}

// A day and a month may begin at the same instant. Spending regained with the
// day is not given back in the month, not even if other limits came in between.
func TestAReservationOfACalendarThatHasChangedGivesNothingBack(t *testing.T) {
	verdicts(t)
	day, month := ratelimit.Calendar(5, ratelimit.Day("UTC")), ratelimit.Calendar(5, ratelimit.Month("UTC", 1))
	for name, changes := range map[string][]ratelimit.Limit{
		"to a month":                 {month},
		"to a short window and back": {ratelimit.FixedWindow(ratelimit.Per(5, time.Second)), day},
	} {
		t.Run(name, func(t *testing.T) {
			l, clock := datedPair(t, day, time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC))
			r, err := l.Reserve(t.Context(), "k", 5, 0)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			if len(changes) == 1 {
				clock.Advance(24 * time.Hour)
			}
			for i, limit := range changes {
				require.NoError(t, l.SetLimit(limit))
				d, err := l.Take(t.Context(), "k", 5)
				require.NoError(t, err)
				require.Equal(t, i == 0 && len(changes) == 1, d.Allowed)
				if limit != day && limit != month {
					clock.Advance(time.Second)
					require.True(t, l.Allow("k", 5))
				}
			}
			require.NoError(t, r.Cancel())
			assert.False(t, l.Allow("k", 1))
		})
	}
}

// A call without cost puts a key under a calendar. The next call
// comes years later, and has no data on the windows in between.
func TestADebtIsRegainedThoughNothingIsSpentAfterAChangeToACalendar(t *testing.T) {
	verdicts(t)
	day, month := ratelimit.Calendar(100, ratelimit.Day("UTC")), ratelimit.Calendar(5, ratelimit.Month("UTC", 31))
	_, to := month.Period.Window(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	for start := range testsize.Of(4, 12) {
		at := to.Add(-2 * time.Hour)
		_, to = month.Period.Window(to)
		for _, first := range []ratelimit.Limit{day, ratelimit.FixedWindow(ratelimit.PerDay(100))} {
			l, clock := datedPair(t, first, at)
			require.True(t, l.Allow("k", 100))
			clock.Advance(time.Hour)
			require.NoError(t, l.SetLimit(month))
			d, err := l.Take(t.Context(), "k", start%2)
			require.NoError(t, err)
			clock.Advance(d.ResetAfter - time.Microsecond)
			require.False(t, l.Allow("k", 5), "%v: %v", start, first)
			clock.Advance(time.Microsecond)
			require.True(t, l.Allow("k", 5), "%v: %v", start, first)
		}
	}
}

// Units set aside by a lowered calendar come back first. Other callers' spending still counts.
func TestASettlementUnderALoweredCalendarGivesBackOfTheUnitsSetAsideFirst(t *testing.T) {
	verdicts(t)
	week := ratelimit.Week("Pacific/Apia", time.Saturday)
	l, clock := datedPair(t, ratelimit.Calendar(3, week), time.Date(2026, 6, 3, 0, 0, 0, 0, time.UTC))
	memory, err := ratelimit.New(ratelimit.Calendar(3, week), &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	for _, each := range []interface {
		ratelimit.Reserver[string]
		SetLimit(limit ratelimit.Limit) error
	}{l, memory} {
		r, err := each.Reserve(t.Context(), "k", 1, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		d, err := each.Take(t.Context(), "k", 2)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.NoError(t, each.SetLimit(ratelimit.Calendar(1, week)))
		_, err = each.Take(t.Context(), "k", 0) // on Redis the limit applies from this call on
		require.NoError(t, err)
		require.NoError(t, r.Cancel())
		d, err = each.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed, "2 of 1 are spent: %T", each)
	}
}

// A caller waits longer than Redis books ahead. It books once its window is near enough.
func TestAWaitReachesBeyondTheNextWindowOfACalendar(t *testing.T) {
	store := realStore(t)
	synctest.Test(t, func(t *testing.T) {
		process := store.Open(t, time.Millisecond)
		minute := ratelimit.Calendar(2, ratelimit.Minute("UTC"))
		l, other := process(minute), process(minute)
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		begin := time.Now()
		served := func(minute int) {
			require.WithinDuration(t, begin.Add(time.Duration(minute)*time.Minute), time.Now(), 5*time.Millisecond)
		}
		// charges all units of this window and the next, and half of the third one's
		require.NoError(t, l.Adjust(t.Context(), "k", 5))
		hurried, leave := context.WithTimeout(t.Context(), 150*time.Second)
		defer leave()
		require.ErrorIs(t, l.Wait(hurried, "k", 2), context.DeadlineExceeded)
		require.Less(t, time.Since(begin), time.Second, "it cannot be served in time")
		require.NoError(t, l.Wait(hurried, "k", 1))
		served(2)
		require.NoError(t, other.Adjust(t.Context(), "k", 4))
		patient, leave := context.WithTimeout(t.Context(), time.Hour)
		defer leave()
		require.NoError(t, l.Wait(patient, "k", 2))
		served(5)
		require.NoError(t, l.Adjust(t.Context(), "k", 5))
		require.NoError(t, l.Wait(t.Context(), "k", 2))
		served(9)
	})
}
