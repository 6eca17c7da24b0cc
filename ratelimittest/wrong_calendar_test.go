package ratelimittest_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

const dated = ratelimit.AlgorithmCalendar

// quota is an engine for calendars alone. It reads only the wall clock.
type quota struct {
	limit  ratelimit.Limit
	wall   func() time.Time
	window func(p ratelimit.Period, at time.Time) (from, to time.Time)

	follows  bool // a wall clock set back restores the former window
	forgives bool // it forgets debts
	stale    bool // a cost of 0 does not move the key out of an ended window
	sweeps   bool // a dropped key may come back in the same window
	retry    func(q *quota, retry time.Duration, from time.Time) time.Duration

	mu    sync.Mutex // guards the fields below
	keys  map[string]*quotaKey
	floor time.Time // no new key begins in an earlier window
}

type quotaKey struct {
	from, to time.Time
	spent    int64
}

func (q *quota) units() int64 { return int64(q.limit.Rate.Units) }

func newQuota(limit ratelimit.Limit, c clock) *quota {
	return &quota{limit: limit, wall: c.Wall, window: ratelimit.Period.Window, keys: make(map[string]*quotaKey)}
}

func (q *quota) Allow(key string, cost int) bool {
	d, err := q.Take(context.Background(), key, cost)
	return err == nil && d.Allowed
}

func (q *quota) Take(_ context.Context, key string, cost int) (ratelimit.Decision, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := ratelimit.Decision{Limit: q.limit}
	switch {
	case cost < 0:
		return d, ratelimit.ErrNegativeCost
	case cost > q.limit.Rate.Units:
		return d, ratelimit.ErrExceedsLimit
	}
	wall := q.wall()
	k := q.find(key)
	if !q.stale || cost > 0 {
		q.roll(k, wall)
	}
	from := q.fits(*k, cost)
	if d.Allowed = cost == 0 || !from.After(k.from); d.Allowed {
		k.spent += int64(cost)
	} else {
		d.RetryAfter = from.Sub(wall)
		if q.retry != nil {
			d.RetryAfter = q.retry(q, d.RetryAfter, from)
		}
	}
	if d.Remaining = int(max(0, q.units()-k.spent)); k.spent > 0 {
		d.ResetAfter = max(0, q.fits(*k, q.limit.Rate.Units).Sub(wall))
		q.keys[key] = k
	}
	return d, nil
}

func (q *quota) find(key string) *quotaKey {
	if k := q.keys[key]; k != nil {
		return k
	}
	k := new(quotaKey)
	if !q.floor.IsZero() {
		k.from, k.to = q.window(q.limit.Period, q.floor)
	}
	return k
}

// roll moves a key to the window of a wall time.
func (q *quota) roll(k *quotaKey, wall time.Time) {
	for k.spent > 0 && !wall.Before(k.to) {
		if k.spent -= q.units(); k.spent < 0 || q.forgives {
			k.spent = 0
		}
		k.from, k.to = q.window(q.limit.Period, k.to)
	}
	if from, to := q.window(q.limit.Period, wall); k.spent == 0 && !wall.Before(k.to) || q.follows && from.Before(k.from) {
		*k = quotaKey{from: from, to: to}
	}
}

// fits returns the beginning of the first window with room for a cost.
func (q *quota) fits(k quotaKey, cost int) time.Time {
	for k.spent+int64(cost) > q.units() {
		k.spent = max(0, k.spent-q.units())
		k.from, k.to = q.window(q.limit.Period, k.to)
	}
	return k.from
}

// indebted is a quota that accepts charges above its capacity.
type indebted struct{ *quota }

func (q indebted) Adjust(key string, delta int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.find(key)
	q.roll(k, q.wall())
	windows := min(int64(100*365*24*time.Hour/q.limit.RefillTime()), math.MaxInt64/4/q.units())
	k.spent = min(max(0, k.spent+min(max(int64(delta), -k.spent), math.MaxInt64/2)), windows*q.units())
	if k.spent > 0 {
		q.keys[key] = k
	}
	return nil
}

func (q *quota) Sweep() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, k := range q.keys {
		if q.roll(k, q.wall()); k.spent == 0 {
			if !q.sweeps && k.from.After(q.floor) {
				q.floor = k.from
			}
			delete(q.keys, key)
			n++
		}
	}
	return n
}

// quotas adds a bug to a quota.
func quotas(bug func(q *quota, c clock)) func(ratelimit.Limit, clock) limiter {
	return func(limit ratelimit.Limit, c clock) limiter {
		q := newQuota(limit, c)
		bug(q, c)
		return q
	}
}

// ofPeriods returns a function that accepts calendars if their periods' texts have one of these prefixes.
func ofPeriods(periods ...string) func(ratelimit.Limit) bool {
	return func(l ratelimit.Limit) bool {
		for _, p := range periods {
			if l.Algorithm == dated && strings.HasPrefix(l.Period.String(), p) {
				return true
			}
		}
		return false
	}
}

// ---- wrong windows ----

type windowFunc = func(p ratelimit.Period, at time.Time) (from, to time.Time)

// zoneOf returns a period's zone.
func zoneOf(p ratelimit.Period) *time.Location {
	from, _ := p.Window(time.Now())
	return from.Location()
}

// inZone returns windows in a zone whose clocks are never set.
func inZone(offset func(p ratelimit.Period) int) windowFunc {
	return func(p ratelimit.Period, at time.Time) (from, to time.Time) {
		words := strings.Fields(p.String())
		words[1] = "UTC"
		limit, err := ratelimit.ParseLimit("calendar 1/" + strings.Join(words, " "))
		if err != nil {
			panic(err)
		}
		ahead := time.Duration(offset(p)) * time.Second
		from, to = limit.Period.Window(at.Add(ahead))
		return from.Add(-ahead), to.Add(-ahead)
	}
}

func utc(ratelimit.Period) int { return 0 }

// winter returns a zone's offset from UTC while its clocks are not set forward.
func winter(p ratelimit.Period) int {
	_, january := time.Date(2010, 1, 1, 0, 0, 0, 0, zoneOf(p)).Zone()
	_, july := time.Date(2010, 7, 1, 0, 0, 0, 0, zoneOf(p)).Zone()
	return min(january, july)
}

// lasts24h returns days that end 24 hours after their beginning.
func lasts24h(p ratelimit.Period, at time.Time) (from, to time.Time) {
	from, to = p.Window(at)
	if end := from.Add(24 * time.Hour); end.After(at) {
		return from, end
	}
	return from, to
}

// midnights begins a day at time.Date's midnight.
func midnights(p ratelimit.Period, at time.Time) (from, to time.Time) {
	y, m, d := at.In(zoneOf(p)).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, zoneOf(p)), time.Date(y, m, d+1, 0, 0, 0, 0, zoneOf(p))
}

// overflows31 returns months beginning on a 31st. If a month is short,
// time.Date moves its 31st to one of the next month's first days.
func overflows31(_ ratelimit.Period, at time.Time) (from, to time.Time) {
	y, m, _ := at.UTC().Date()
	for m += 2; ; m-- {
		if from = time.Date(y, m-1, 31, 0, 0, 0, 0, time.UTC); !from.After(at) {
			return from, time.Date(y, m, 31, 0, 0, 0, 0, time.UTC)
		}
	}
}

// skips31 returns windows beginning on a 31st. Months without one begin no window.
func skips31(_ ratelimit.Period, at time.Time) (from, to time.Time) {
	to = at.UTC().Truncate(24 * time.Hour)
	for to = to.AddDate(0, 0, 1); to.Day() != 31; {
		to = to.AddDate(0, 0, 1)
	}
	for from = to.AddDate(0, 0, -1); from.Day() != 31; {
		from = from.AddDate(0, 0, -1)
	}
	return from, to
}

func stays28(_ ratelimit.Period, at time.Time) (from, to time.Time) {
	return ratelimit.Month("UTC", 28).Window(at)
}

func mondays(_ ratelimit.Period, at time.Time) (from, to time.Time) {
	return ratelimit.Week("UTC", time.Monday).Window(at)
}

func windows(w windowFunc) func(ratelimit.Limit, clock) limiter {
	return quotas(func(q *quota, _ clock) { q.window = w })
}

// ---- bugs added to our limiter ----

// settlesByTheWall gives back another window's reservation if the wall clock shows this window again.
func settlesByTheWall(l *faulty, _ ratelimit.Limit, c clock) {
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		p := l.current().Period
		from, to := p.Window(c.Wall())
		ends := c.Now() + to.Sub(c.Wall())
		return settled(r, func(actual int) error {
			now, _ := p.Window(c.Wall())
			if c.Now() < ends || now.After(from) || p != l.current().Period || actual >= cost || r.Delay > 0 {
				return r.Settle(actual)
			}
			return l.keyed.Adjust(context.Background(), key, actual-cost)
		}), err
	}
}

// readingsOnly reads the wall clock when it is made, and never again.
func readingsOnly(l *faulty, limit ratelimit.Limit, c clock) {
	l.keyed = ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: &fixedWall{c, c.Wall().Add(-time.Duration(c.Now()))}}))
}

type fixedWall struct {
	clock
	zero time.Time // the wall time at the clock's reading of 0
}

func (f *fixedWall) Wall() time.Time { return f.zero.Add(f.Now()) }

// unknownIsUTC uses UTC for an unknown zone.
func unknownIsUTC(limit ratelimit.Limit, c clock) (limiter, error) {
	if limit.Algorithm == dated && limit.Validate() != nil && strings.Contains(limit.Period.String(), "Atlantis") {
		limit.Period = ratelimit.Day("UTC")
	}
	return ratelimit.New(limit, &ratelimit.Options[string]{Clock: c})
}

var wrongCalendars = []wrong{
	{name: "the zone is UTC", promise: "promise", text: "", accepts: ofPeriods("day", "week"), build: windows(inZone(utc))},
	{name: "clocks are never set", promise: "promise", text: "", accepts: ofPeriods("day Europe/Berlin", "day Australia/Lord_Howe"), build: windows(inZone(winter))},
	{name: "a day has 24 hours", promise: "promise", text: "", accepts: ofPeriods("day America/New_York"), build: windows(lasts24h)},
	{name: "midnight is that of time.Date", promise: "promise", text: "", accepts: ofPeriods("day America/Havana"), build: windows(midnights)},
	{name: "the 31st of a short month is in the next", promise: "promise", text: "", accepts: ofPeriods("month UTC from 31"), build: windows(overflows31)},
	{name: "short months are skipped", promise: "promise", text: "", accepts: ofPeriods("month UTC from 31"), build: windows(skips31)},
	{name: "the 31st becomes the 28th for good", promise: "promise", text: "", accepts: ofPeriods("month UTC from 31"), build: windows(stays28)},
	{name: "every week begins on Monday", promise: "promise", text: "", accepts: ofPeriods("week UTC from sunday"), build: windows(mondays)},
	{name: "the last nanosecond belongs to the next window", promise: "promise 5", text: "goes beyond the bound", accepts: only(dated),
		build: quotas(func(q *quota, c clock) { q.wall = func() time.Time { return c.Wall().Add(1) } })},
	{name: "a window is granted again when the wall is set back", promise: "promise 5", text: "where a wall clock that is set grants no window twice",
		accepts: only(dated), build: quotas(func(q *quota, _ clock) { q.follows = true })},
	{name: "a key that was swept gets its window again", promise: "promise", text: "by way of Sweep", accepts: only(dated),
		build: quotas(func(q *quota, _ clock) { q.sweeps = true })},
	{name: "a wall that is set is not noticed", promise: "promise", text: "where a wall clock that is set", accepts: only(dated), build: fault(readingsOnly)},
	{name: "RetryAfter is the end of the next window", promise: "promise 1", text: "", accepts: only(dated),
		build: quotas(func(q *quota, _ clock) {
			q.retry = func(q *quota, retry time.Duration, from time.Time) time.Duration {
				_, to := q.window(q.limit.Period, from)
				return retry + to.Sub(from)
			}
		})},
	{name: "RetryAfter is until midnight", promise: "promise 1", text: "", accepts: ofPeriods("week", "month"),
		build: quotas(func(q *quota, c clock) {
			q.retry = func(q *quota, _ time.Duration, _ time.Time) time.Duration {
				_, to := ratelimit.Day(zoneOf(q.limit.Period).String()).Window(c.Wall())
				return to.Sub(c.Wall())
			}
		})},
	{name: "Remaining is that of the window before", promise: "promise", text: "remain", accepts: only(dated), build: quotas(func(q *quota, _ clock) { q.stale = true })},
	{name: "a debt is over with the window", promise: "promise 1", text: "RetryAfter was", accepts: ofPeriods("month"),
		build: func(limit ratelimit.Limit, c clock) limiter {
			q := newQuota(limit, c)
			q.forgives = true
			return indebted{q}
		}},
	{name: "a change to or from a calendar starts afresh", promise: "the promise of SetLimit", text: "were", accepts: only(dated, fixed),
		build: fault(func(l *faulty, _ ratelimit.Limit, _ clock) {
			resets(l, func(old, now ratelimit.Limit) bool { return (old.Algorithm == dated) != (now.Algorithm == dated) })
		})},
	{name: "another period starts afresh", promise: "the promise of SetLimit", text: "were", accepts: only(dated),
		build: fault(func(l *faulty, _ ratelimit.Limit, _ clock) {
			resets(l, func(old, now ratelimit.Limit) bool { return old.Period != now.Period })
		})},
	{name: "a settlement goes by the wall", promise: "the promise of Settle", text: "to which the wall clock was set back", accepts: only(dated), build: fault(settlesByTheWall)},
	{name: "an unknown zone is UTC", promise: "promise 6", text: "Atlantis", accepts: only(dated), newly: unknownIsUTC},
}

func TestLimitersThatCountByWrongCalendarsAreFoundOut(t *testing.T) {
	testsize.Arithmetic(t)
	testsize.Extra(t)
	findAll(t, wrongCalendars)
}

// Without an added bug, the engine passes the suite.
func TestAnEngineOfQuotasPasses(t *testing.T) {
	clock := new(ratelimittest.Clock)
	config := ratelimittest.Config{Clock: clock, Accepts: only(dated), Histories: 10, Want: []string{"Sweep", "Calendar"},
		New: func(limit ratelimit.Limit) (limiter, error) {
			if err := limit.Validate(); err != nil {
				return nil, err
			}
			return newQuota(limit, clock), nil
		}}
	ratelimittest.Run(t, config)
	config.Accepts, config.Want = ofPeriods("month"), []string{"Adjust"}
	config.New = func(limit ratelimit.Limit) (limiter, error) {
		if err := limit.Validate(); err != nil {
			return nil, err
		}
		return indebted{newQuota(limit, clock)}, nil
	}
	assert.NoError(t, ratelimittest.Check(config))
}

// An engine need not support calendars. If Config.Want requires them, the error contains why they were left out.
func TestAnEngineWithoutCalendarsPasses(t *testing.T) {
	config := ours()
	config.Histories, config.NewBounded, config.NewFloat = 2, nil, nil
	config.Skip = []string{"Wait"}
	config.New = refusing(config.Clock)
	require.NoError(t, ratelimittest.Check(config))
	config.Want = []string{"Calendar"}
	require.ErrorContains(t, ratelimittest.Check(config), "Config.Want has Calendar, and none are tried: Config.New(calendar ")
	config.New = ours().New
	config.Skip = append(config.Skip, "Calendar")
	require.ErrorContains(t, ratelimittest.Check(config), "Config.Skip names Calendar")
	remote := remoteConfig(&link{})
	remote.Histories, remote.Skip, remote.Want = 1, []string{"Wait"}, []string{"Calendar"}
	require.ErrorContains(t, ratelimittest.Check(remote), "Config.Clock is nil")
}

// refusing returns a New that refuses calendars.
func refusing(c clock) func(ratelimit.Limit) (limiter, error) {
	return func(limit ratelimit.Limit) (limiter, error) {
		if limit.Algorithm == dated {
			return nil, errors.Join(ratelimit.ErrInvalidLimit, errors.New("no calendars here"))
		}
		return ratelimit.New(limit, &ratelimit.Options[string]{Clock: c})
	}
}
