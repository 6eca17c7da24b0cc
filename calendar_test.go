package ratelimit_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// wallClock is a clock whose wall time is set independently of its readings.
type wallClock struct {
	testClock
	off atomic.Int64
}

func (c *wallClock) Wall() time.Time { return time.Unix(0, c.now.Load()+c.off.Load()) }

// setWall sets the wall clock, as an operator does.
func (c *wallClock) setWall(at time.Time) { c.off.Store(at.UnixNano() - c.now.Load()) }

// at returns a limiter whose clock shows the given time in a time zone.
func at(t testing.TB, limit ratelimit.Limit, name, text string) (*ratelimit.Keyed[string], *wallClock) {
	t.Helper()
	clock := new(wallClock)
	clock.setWall(date(t, name, text))
	return newWith(t, limit, ratelimit.Options[string]{Clock: clock}), clock
}

// countedClock counts a clock's readings.
type countedClock struct {
	wallClock
	reads atomic.Int64
}

func (c *countedClock) Now() time.Duration {
	c.reads.Add(1)
	return c.wallClock.Now()
}

func TestADecisionUnderACalendarReadsTheClockOnceWithinAWindow(t *testing.T) {
	clock := new(countedClock)
	clock.setWall(date(t, "UTC", "2026-03-10 10:00"))
	l := newWith(t, ratelimit.Calendar(2, ratelimit.Day("UTC")), ratelimit.Options[string]{Clock: clock})
	require.True(t, l.Allow("k", 1), "the first decision finds the window")
	reads := func(call func()) int64 {
		before := clock.reads.Load()
		call()
		return clock.reads.Load() - before
	}
	for range 2 { // one allowed and one denied call
		assert.EqualValues(t, 1, reads(func() {
			d, err := l.Take(t.Context(), "k", 1)
			assert.NoError(t, err)
			assert.Equal(t, 14*time.Hour, d.ResetAfter)
		}))
	}
	assert.EqualValues(t, 1, reads(func() { assert.False(t, l.Allow("k", 1)) }))
	clock.advance(14 * time.Hour)
	assert.True(t, l.Allow("k", 1), "the next window")
}

func date(t testing.TB, name, text string) time.Time {
	t.Helper()
	at, err := time.ParseInLocation("2006-01-02 15:04", text, model.Zone(name))
	require.NoError(t, err)
	return at
}

func TestACalendarsWindowsFollowItsZone(t *testing.T) {
	for _, row := range []struct {
		limit     string
		now, next string
	}{
		{"calendar 9/day UTC", "2026-03-29 10:30", "2026-03-30 00:00"},
		{"calendar 9/day Europe/Berlin", "2026-03-29 00:00", "2026-03-30 00:00"}, // a day of 23 hours
		{"calendar 9/day Europe/Berlin", "2026-10-25 00:00", "2026-10-26 00:00"}, // a day of 25 hours
		{"calendar 9/day America/Havana", "2026-03-07 12:00", "2026-03-08 01:00"},
		{"calendar 9/week America/New_York from monday", "2026-11-01 12:00", "2026-11-02 00:00"},
		{"calendar 9/week UTC from sunday", "2026-11-01 00:00", "2026-11-08 00:00"},
		{"calendar 9/month Europe/Berlin from 15", "2026-01-14 23:59", "2026-01-15 00:00"},
		{"calendar 9/month Europe/Berlin from 15", "2026-01-15 00:00", "2026-02-15 00:00"},
		{"calendar 9/month UTC from 31", "2026-01-31 00:00", "2026-02-28 00:00"},
		{"calendar 9/month UTC from 31", "2026-02-28 00:00", "2026-03-31 00:00"},
		{"calendar 9/month UTC from 31", "2026-03-31 00:00", "2026-04-30 00:00"},
	} {
		limit, err := ratelimit.ParseLimit(row.limit)
		require.NoError(t, err)
		_, end := limit.Period.Window(time.Now())
		name := end.Location().String()
		l, clock := at(t, limit, name, row.now)
		left := date(t, name, row.next).Sub(date(t, name, row.now))
		require.True(t, l.Allow("k", 9))
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Limit: limit, RetryAfter: left, ResetAfter: left, NextAfter: left}, d, row)
		clock.advance(left - 1)
		assert.False(t, l.Allow("k", 1), row)
		clock.advance(1)
		assert.True(t, l.Allow("k", 9), row)
		from, to := limit.Period.Window(date(t, name, row.next))
		assert.WithinDuration(t, date(t, name, row.next), from, 0, row)
		assert.Equal(t, clock.Wall().Add(retryAfter(t, l)).Unix(), to.Unix(), row)
	}
}

func retryAfter(t testing.TB, l *ratelimit.Keyed[string]) time.Duration {
	t.Helper()
	d, err := l.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	return d.RetryAfter
}

func TestADebtRunsOverIntoTheWindowsThatFollow(t *testing.T) {
	l, clock := at(t, ratelimit.Calendar(10, ratelimit.Month("UTC", 31)), "UTC", "2026-01-31 00:00")
	require.NoError(t, l.Adjust(context.Background(), "k", 25))
	d, err := l.Peek(context.Background(), "k", 6)
	require.NoError(t, err)
	assert.Equal(t, date(t, "UTC", "2026-04-30 00:00").Sub(clock.Wall()), d.ResetAfter)
	assert.Equal(t, d.ResetAfter, d.RetryAfter, "6 do not fit beside 5")
	assert.Equal(t, date(t, "UTC", "2026-03-31 00:00").Sub(clock.Wall()), retryAfter(t, l))
	clock.setWall(date(t, "UTC", "2026-04-01 00:00"))
	clock.advance(time.Minute)
	assert.Equal(t, 5, remaining(t, l, "k"))
}

func TestABookingOfACalendarIsInTheNextWindow(t *testing.T) {
	l, clock := at(t, ratelimit.Calendar(10, ratelimit.Day("Europe/Berlin")), "Europe/Berlin", "2026-10-24 12:00")
	require.True(t, l.Allow("k", 8))
	r, err := l.Reserve(t.Context(), "k", 5, 48*time.Hour)
	require.NoError(t, err)
	assert.Equal(t, 12*time.Hour, r.Delay)
	r, err = l.Reserve(t.Context(), "k", 6, 48*time.Hour)
	require.NoError(t, err)
	assert.Equal(t, 37*time.Hour, r.Delay, "a day of 25 hours")
	denied, err := l.Reserve(t.Context(), "k", 6, 48*time.Hour)
	require.NoError(t, err)
	assert.Equal(t, 13*time.Hour, denied.RetryAfter)
	require.NoError(t, r.Cancel())
	clock.advance(12 * time.Hour)
	assert.Equal(t, 5, remaining(t, l, "k"))
}

// Spending in the present window stays until the new limit's window ends.
func TestAChangeToAndFromACalendarKeepsTheSpending(t *testing.T) {
	calendars := []ratelimit.Limit{
		ratelimit.Calendar(10, ratelimit.Day("UTC")), ratelimit.Calendar(20, ratelimit.Day("UTC")),
		ratelimit.Calendar(10, ratelimit.Month("Europe/Berlin", 15)), ratelimit.Calendar(10, ratelimit.Week("UTC", time.Monday)),
	}
	others := []ratelimit.Limit{
		ratelimit.FixedWindow(ratelimit.PerHour(10)), ratelimit.SlidingCounter(ratelimit.PerHour(10)), ratelimit.SlidingLog(ratelimit.PerHour(10)),
		ratelimit.TokenBucket(ratelimit.PerHour(10), 10), ratelimit.LeakyBucket(ratelimit.PerHour(10), 10),
	}
	for _, from := range append(calendars, others...) {
		for _, to := range append(calendars, others...) {
			if from.Algorithm != ratelimit.AlgorithmCalendar && to.Algorithm != ratelimit.AlgorithmCalendar {
				continue
			}
			l, clock := at(t, from, "UTC", "2026-05-20 12:00")
			require.True(t, l.Allow("k", 4))
			require.NoError(t, l.SetLimit(to))
			assert.Equal(t, to.Capacity()-4, remaining(t, l, "k"), "%v to %v", from, to)
			require.True(t, l.Allow("k", to.Capacity()-4))
			if to.Algorithm == ratelimit.AlgorithmCalendar {
				_, end := to.Period.Window(clock.Wall())
				assert.Equal(t, end.Sub(clock.Wall()), retryAfter(t, l), "%v to %v", from, to)
			}
		}
	}
}

func TestAWallClockThatIsSetForwardGrantsEarlyAndOnce(t *testing.T) {
	l, clock := at(t, ratelimit.Calendar(3, ratelimit.Day("UTC")), "UTC", "2026-05-20 12:00")
	require.True(t, l.Allow("k", 3))
	clock.setWall(date(t, "UTC", "2026-05-21 00:00"))
	clock.advance(time.Minute - 1)
	assert.False(t, l.Allow("k", 1), "the wall is looked at once a minute")
	clock.advance(1)
	assert.True(t, l.Allow("k", 3))
	assert.Equal(t, 24*time.Hour-time.Minute, retryAfter(t, l))
	assert.False(t, l.Allow("k", 1))
}

func TestAWallClockThatIsSetBackProlongsTheWindow(t *testing.T) {
	l, clock := at(t, ratelimit.Calendar(3, ratelimit.Day("UTC")), "UTC", "2026-05-20 23:59")
	require.True(t, l.Allow("k", 3))
	clock.advance(time.Minute)
	require.True(t, l.Allow("k", 2))
	clock.setWall(date(t, "UTC", "2026-05-20 18:00"))
	clock.advance(time.Minute)
	assert.True(t, l.Allow("k", 1), "what is left of the later day")
	assert.Equal(t, 30*time.Hour-time.Minute, retryAfter(t, l), "the end of the 21st")
	clock.advance(6 * time.Hour)
	assert.False(t, l.Allow("k", 1), "the 21st begins again")
	clock.advance(24 * time.Hour)
	assert.True(t, l.Allow("k", 3))
}

// A boundary is computed again as soon as it is reached: the machine may have
// slept, or the wall clock may have been set back less than a minute ago.
func TestABoundaryIsLookedForAgainWhenItIsReached(t *testing.T) {
	l, clock := at(t, ratelimit.Calendar(3, ratelimit.Day("UTC")), "UTC", "2026-05-20 23:59")
	require.True(t, l.Allow("k", 3))
	clock.advance(30 * time.Second)
	clock.setWall(date(t, "UTC", "2026-05-20 23:59"))
	clock.advance(30 * time.Second)
	assert.False(t, l.Allow("k", 1))
	assert.Equal(t, 30*time.Second, retryAfter(t, l))
}

// A key dropped as fresh does not begin in an earlier window, even if the wall clock or all clocks go back.
func TestADroppedKeyIsNotGrantedItsWindowAgain(t *testing.T) {
	for _, back := range []func(*wallClock){
		func(c *wallClock) { c.setWall(c.Wall().Add(-2 * time.Hour)); c.advance(time.Minute) },
		func(c *wallClock) { c.advance(-2 * time.Hour) },
	} {
		l, clock := at(t, ratelimit.Calendar(3, ratelimit.Day("UTC")), "UTC", "2026-05-20 12:00")
		require.True(t, l.Allow("k", 3))
		clock.advance(13 * time.Hour)
		require.Equal(t, 1, l.Sweep())
		back(clock)
		require.True(t, l.Allow("k", 3), "the 21st")
		clock.advance(3 * time.Hour)
		assert.False(t, l.Allow("k", 1), "the 21st again")
	}
	// A boundary moved since its computation makes no key fresh.
	l, clock := at(t, ratelimit.Calendar(3, ratelimit.Day("UTC")), "UTC", "2026-05-20 12:00")
	require.True(t, l.Allow("k", 3))
	clock.advance(11 * time.Hour)
	require.False(t, l.Allow("k", 1))
	clock.setWall(date(t, "UTC", "2026-05-20 20:00"))
	clock.advance(2 * time.Hour)
	assert.Equal(t, 0, l.Sweep())
	assert.False(t, l.Allow("k", 1))
}

// readings is a clock without a wall time.
type readings struct{}

func (readings) Now() time.Duration { return 0 }

func TestACalendarNeedsAWallClock(t *testing.T) {
	calendar := ratelimit.Calendar(5, ratelimit.Day("UTC"))
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.ErrorContains(t, err, "readings without Wall")
	}
	_, err := ratelimit.New(calendar, &ratelimit.Options[string]{Clock: readings{}})
	refused(err)
	opts := ratelimit.Options[string]{Clock: readings{}}
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(5)), opts)
	refused(l.SetLimit(calendar))
	require.True(t, l.Allow("k", 1))
	opts.LimitFor = func(string) ratelimit.Limit { return calendar }
	_, err = newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(5)), opts).Take(t.Context(), "k", 1)
	refused(err)
	stack, err := ratelimit.All(model.WithLimit(
		ratelimit.By(l, func(s string) (string, error) { return s, nil }), func(string) ratelimit.Limit { return calendar }))
	require.NoError(t, err)
	_, err = stack.Take(t.Context(), "k", 1)
	refused(err)
	assert.Equal(t, 4, remaining(t, l, "k"))
}

func TestPeriodsThatAreInvalid(t *testing.T) {
	for text, p := range map[string]ratelimit.Period{
		"there is none": {}, `zone is ""`: ratelimit.Day(""), `zone is "Local"`: ratelimit.Month("Local", 1),
		`"Europe/Atlantis" is not known: want a name of the IANA time zone database, such as UTC or Europe/Berlin; ` +
			`on a machine without that database, the program has to import _ "time/tzdata"`: ratelimit.Week("Europe/Atlantis", time.Monday),
		"first day is 0, want 1 to 31": ratelimit.Month("UTC", 0), "first day is 32, want 1 to 31": ratelimit.Month("UTC", 32),
		"first day is -1, want 0": ratelimit.Week("UTC", -1), "first day is 7, want 0": ratelimit.Week("UTC", 7),
		"want 1 to 31": ratelimit.Month("UTC", math.MinInt),
	} {
		bad := ratelimit.Calendar(5, p)
		good := ratelimit.Calendar(5, ratelimit.Day("UTC"))
		_, made := ratelimit.New[string](bad, nil)
		l := ratelimit.Must(ratelimit.New[string](good, nil))
		_, requested := newWith(t, good, ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit { return bad }}).Take(t.Context(), "k", 1)
		_, parsed := ratelimit.ParseLimit(bad.String())
		for _, err := range []error{bad.Validate(), made, l.SetLimit(bad), requested, parsed} {
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, text)
			if err != parsed {
				require.ErrorContains(t, err, text)
			}
		}
		from, to := p.Window(time.Now())
		assert.True(t, from.IsZero() && to.IsZero())
		assert.Zero(t, bad.RefillTime())
	}
	limit := ratelimit.Calendar(5, ratelimit.Day("UTC"))
	for _, change := range []func(*ratelimit.Limit){
		func(l *ratelimit.Limit) { l.Rate.Per = time.Hour }, func(l *ratelimit.Limit) { l.Burst = 1 },
		func(l *ratelimit.Limit) { l.Rate.Units = 0 }, func(l *ratelimit.Limit) { *l = ratelimit.Unlimited(); l.Period = limit.Period },
		func(l *ratelimit.Limit) {
			*l = ratelimit.FixedWindow(ratelimit.PerDay(5))
			l.Period = ratelimit.Day("UTC")
		},
	} {
		bad := limit
		change(&bad)
		assert.ErrorIs(t, bad.Validate(), ratelimit.ErrInvalidLimit)
	}
}

func TestTheLongestWindowIsTheRefillTime(t *testing.T) {
	assert.Equal(t, 24*time.Hour, ratelimit.Calendar(1, ratelimit.Day("UTC")).RefillTime())
	assert.Equal(t, 25*time.Hour, ratelimit.Calendar(1, ratelimit.Day("Europe/Berlin")).RefillTime())
	assert.Equal(t, 31*24*time.Hour, ratelimit.Calendar(1, ratelimit.Month("UTC", 1)).RefillTime())
	assert.Equal(t, 169*time.Hour, ratelimit.Calendar(1, ratelimit.Week("America/New_York", time.Sunday)).RefillTime())
}

func TestALimitStaysSmall(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 {
		assert.LessOrEqual(t, unsafe.Sizeof(ratelimit.Period{}), uintptr(8))
		assert.LessOrEqual(t, unsafe.Sizeof(ratelimit.Limit{}), uintptr(56))
		assert.LessOrEqual(t, unsafe.Sizeof(ratelimit.Decision{}), uintptr(112))
	}
}

func TestTheSystemsClockReadsTheWallTime(t *testing.T) {
	p := ratelimit.Month("UTC", 1)
	l := ratelimit.Must(ratelimit.New[string](ratelimit.Calendar(1, p), nil))
	require.True(t, l.Allow("k", 1))
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	_, to := p.Window(time.Now())
	assert.InDelta(t, time.Until(to), d.RetryAfter, float64(time.Minute))
}

func TestACalendarsDecisionDoesNotAllocate(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.Calendar(math.MaxInt32, ratelimit.Month("Europe/Berlin", 15)), nil))
	l.Allow("k", 1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = l.Take(context.Background(), "k", 1) }))
}

// walls is the number of histories to play with changing wall clocks, for example -walls 100000.
var walls = flag.Uint64("walls", 0, "histories of calendars to play; 0: some")

// datedKey is a key of the model, with its window and its spending there. It shares no code
// with the limiter under test: time.Date determines windows, and instants are wall times.
type datedKey struct {
	limit   ratelimit.Limit
	window  time.Time // the window in which used is counted
	used    int
	windows int // windows in which it has spent
	changes int // changes of its limit
	aside   int // spending not counted under a lowered limit, until the time below
	until   time.Duration
}

// roll brings the key's window up to a wall time.
func (k *datedKey) roll(wall time.Time) {
	p := model.PeriodOf(k.limit.Period)
	now := p.Begins(wall.In(p.Location))
	for k.used > 0 && k.window.Before(now) {
		k.used = max(0, k.used-k.limit.Rate.Units)
		k.window = p.Next(k.window)
		k.windows++
	}
	if k.window.Before(now) {
		k.window = now
		k.windows++
	}
}

// adopt puts a key under another limit, and moves its spending to its present window.
func (k *datedKey) adopt(l ratelimit.Limit, wall time.Time, now time.Duration) {
	if k.limit == l {
		return
	}
	k.roll(wall)
	k.changes++
	if k.until <= now || k.aside == 0 { // nothing is set aside now, so the instant until is void
		k.aside, k.until = 0, 0
	}
	debt := max(0, k.used-k.limit.Rate.Units)
	total, most := k.used+k.aside, l.Rate.Units+debt
	if total > most {
		until := now
		if k.used > debt {
			until += model.PeriodOf(k.limit.Period).Next(k.window).Sub(wall)
		}
		k.until = max(until, k.until)
	}
	k.used, k.aside = min(total, most), max(0, total-most)
	if k.limit.Period != l.Period {
		p := model.PeriodOf(l.Period)
		k.window = p.Begins(wall.In(p.Location))
	}
	k.limit = l
}

// free returns the first window in which a cost fits.
func (k *datedKey) free(cost int) time.Time {
	p, window := model.PeriodOf(k.limit.Period), k.window
	for used := k.used; used+cost > k.limit.Rate.Units; used = max(0, used-k.limit.Rate.Units) {
		window = p.Next(window)
	}
	return window
}

// Clocks are set forward and back, over boundaries and steps of daylight saving time, while
// keys spend, settle, go into debt and change their limits. All answers equal the model's.
func TestCalendarsAnswerAsTheModelWhateverTheWallClockDoes(t *testing.T) {
	n := model.Rounds(1500)
	if *walls > 0 {
		n = *walls
	}
	for seed := range n {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { playDates(t, seed) }) {
			return
		}
	}
}

func anyCalendar(r *rand.Rand) ratelimit.Limit {
	return ratelimit.Calendar(1+r.IntN(10), model.Periods[r.IntN(len(model.Periods))].Period)
}

func playDates(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 77))
	limit := anyCalendar(r)
	clock := new(wallClock)
	clock.set(time.Duration(r.Int64N(2*model.Year) - model.Year))
	clock.setWall(time.Date(1990+r.IntN(80), time.Month(1+r.IntN(12)), 1+r.IntN(31), r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1e9), time.UTC))
	l := newWith(t, limit, ratelimit.Options[string]{Clock: clock, IdleTTL: math.MaxInt64}) // keeps all keys in the table
	keys := map[string]*datedKey{}
	type reserved struct {
		r       *ratelimit.Reservation
		key     string
		cost    int
		windows int
		changes int
	}
	var made []reserved
	for step := range 60 {
		key := string(rune('a' + r.IntN(3)))
		span := int64(model.Span(limit))
		switch r.IntN(6) {
		case 0:
			clock.advance(time.Duration(r.Int64N(span)))
		case 1:
			if d, err := l.Peek(context.Background(), key, 1); err == nil {
				clock.advance(max(0, max(d.RetryAfter, d.ResetAfter)+time.Duration(r.IntN(3)-1)))
			}
		case 2:
			if r.IntN(2) == 0 { // the limiter notices this change of the wall clock
				clock.setWall(clock.Wall().Add(time.Duration(r.Int64N(3*span) - 3*span/2)))
				clock.advance(time.Minute + time.Nanosecond)
			}
		}
		wall := clock.Wall()
		k := keys[key]
		if k == nil {
			k = &datedKey{limit: limit}
			keys[key] = k
		}
		cost := 1 + r.IntN(limit.Rate.Units)
		what := fmt.Sprintf("step %d: %v, %v, key %s: %+v", step, limit, wall, key, *k)
		switch r.IntN(12) {
		case 0:
			limit = anyCalendar(r)
			require.NoError(t, l.SetLimit(limit))
		case 1:
			k.adopt(limit, wall, clock.Now())
			k.roll(wall)
			debt := 1 + r.IntN(3*limit.Rate.Units)
			require.NoError(t, l.Adjust(context.Background(), key, debt))
			k.used += debt
		case 2:
			if len(made) == 0 {
				continue
			}
			i := r.IntN(len(made))
			x := made[i]
			made = append(made[:i], made[i+1:]...)
			k = keys[x.key]
			k.roll(wall) // the key stays under its present limit
			require.NoError(t, x.r.Cancel())
			if x.windows == k.windows {
				off := 0
				if x.changes != k.changes && k.until > clock.Now() {
					off = min(k.aside, x.cost)
				}
				k.aside -= off
				k.used = max(0, k.used-(x.cost-off)) // the rest of the refund may be for lapsed units
			}
		default:
			k.adopt(limit, wall, clock.Now())
			k.roll(wall)
			res, err := l.Reserve(t.Context(), key, cost, 0)
			require.NoError(t, err, what)
			if free := k.free(cost); free != k.window {
				require.False(t, res.Allowed, what)
				require.Equal(t, free.Sub(wall.Round(0)), res.RetryAfter, what)
			} else {
				require.True(t, res.Allowed, what)
				k.used += cost
				made = append(made, reserved{res, key, cost, k.windows, k.changes})
			}
			require.Equal(t, max(0, limit.Rate.Units-k.used), res.Remaining, what)
			if k.used > 0 {
				p, end := model.PeriodOf(limit.Period), k.window
				for used := k.used; used > 0; used -= limit.Rate.Units {
					end = p.Next(end)
				}
				require.Equal(t, end.Sub(wall), res.ResetAfter, what)
			}
		}
	}
}

// Clocks jump at random, and keys are dropped, or evicted and remembered.
// No key gets more than the units of all windows shown by the wall clock.
func TestNoWindowIsGrantedTwice(t *testing.T) {
	n := model.Rounds(1000)
	if *walls > 0 {
		n = *walls
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 78))
		limit := anyCalendar(r)
		p := model.PeriodOf(limit.Period)
		clock := new(wallClock)
		clock.setWall(time.Date(2026, 3, 1+r.IntN(60), r.IntN(24), 0, 0, 0, time.UTC))
		opts := ratelimit.Options[string]{Clock: clock, MaxKeys: 4}
		if r.IntN(2) == 0 {
			opts.MaxKeys, opts.Remember = 1+r.IntN(2), 1<<12
		}
		l := newWith(t, limit, opts)
		seen, passed, latest := map[time.Time]bool{}, map[string]int{}, time.Duration(0)
		for range 200 {
			span := int64(model.Span(limit))
			switch r.IntN(5) {
			case 0:
				clock.advance(time.Duration(r.Int64N(2*span) - span/2)) // a step of all clocks, also backwards
			case 1:
				clock.setWall(clock.Wall().Add(time.Duration(r.Int64N(2*span) - span)))
			case 2:
				clock.advance(time.Minute)
			case 3:
				l.Sweep()
			}
			// A key still in the table may be at the latest reading, so the window of this reading counts, too.
			latest = max(latest, clock.Now())
			for _, wall := range []time.Time{clock.Wall(), clock.Wall().Add(latest - clock.Now())} {
				seen[p.Begins(wall.In(p.Location))] = true
			}
			key := string(rune('a' + r.IntN(3)))
			if n := 1 + r.IntN(limit.Rate.Units); l.Allow(key, n) {
				passed[key] += n
			}
			require.LessOrEqual(t, passed[key], limit.Rate.Units*len(seen), "seed %d, %v", seed, limit)
		}
	}
}

// One quota's days begin at four o'clock, also on the day of a change to summer time. Another quota is for a year.
func TestCalendarsAtATimeOfTheDayAndOfAYear(t *testing.T) {
	l, clock := at(t, ratelimit.Calendar(2, ratelimit.Day("Europe/Berlin").At(4*time.Hour)), "Europe/Berlin", "2026-03-29 01:59")
	assert.True(t, l.Allow("k", 2))
	clock.advance(time.Minute) // now it is 3:00
	assert.False(t, l.Allow("k", 1))
	clock.advance(59 * time.Minute)
	assert.False(t, l.Allow("k", 1))
	clock.advance(time.Minute) // now it is 4:00
	assert.True(t, l.Allow("k", 2))
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 24*time.Hour, d.RetryAfter)

	l, clock = at(t, ratelimit.Calendar(2, ratelimit.Year("UTC")), "UTC", "2027-12-31 23:59")
	assert.True(t, l.Allow("k", 2))
	assert.False(t, l.Allow("k", 1))
	clock.advance(time.Minute)
	d, err = l.Take(t.Context(), "k", 2)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 366*24*time.Hour, d.ResetAfter, "2028 is a leap year")
}

func TestThePeriodAtATimeOfTheDayIsComparedAndHasAText(t *testing.T) {
	four := ratelimit.Day("Europe/Berlin").At(4 * time.Hour)
	assert.Equal(t, "day 04:00 Europe/Berlin", four.String())
	assert.Equal(t, "calendar 1000/day 04:00 Europe/Berlin", ratelimit.Calendar(1000, four).String())
	assert.Equal(t, ratelimit.Calendar(1000, four), ratelimit.Must(ratelimit.ParseLimit("calendar 1000/day 04:00 Europe/Berlin")))
	assert.Equal(t, ratelimit.Calendar(5000, ratelimit.Year("UTC")), ratelimit.Must(ratelimit.ParseLimit("calendar 5000/year UTC")))
	assert.Equal(t, ratelimit.Day("UTC"), ratelimit.Day("UTC").At(time.Hour).At(0), "midnight")
	assert.Equal(t, ratelimit.Period{}, ratelimit.Period{}.At(time.Hour))
	for _, wrong := range []ratelimit.Period{ratelimit.Day("UTC").At(24 * time.Hour), ratelimit.Day("UTC").At(-time.Hour), ratelimit.Day("UTC").At(time.Second), ratelimit.Hour("UTC").At(time.Minute), ratelimit.Year("")} {
		require.ErrorIs(t, ratelimit.Calendar(1, wrong).Validate(), ratelimit.ErrInvalidLimit, wrong)
	}
}
