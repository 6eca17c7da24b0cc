package model

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// Carried is a limiter in a store, whose keys are carried from limit to limit.
type Carried interface {
	Flipped
	ratelimit.Adjuster[string]
	ratelimit.Resetter[string]
}

// carryTick is the unit of all instants. All prices and shares of windows are whole ticks, so stores round nothing.
const carryTick = 4096 * time.Microsecond

// carryWindow is a length that all small numbers divide.
const carryWindow = 27720 * carryTick

// Carries plays n random histories of a key in a store and in memory: debts, grants, bookings and open reservations while
// the limit changes between all algorithms and back. All answers must be equal. The function new returns a limiter in the store.
//
// In memory former limits go on counting, and stores keep none. So in half of the histories the limiter in memory restarts before
// each change to another kind of limit, and in the others the key is reset before each second one. A denial under another limit
// writes nothing in a store. So the key is charged before each change.
func Carries(t *testing.T, clock FlipClock, seed uint64, n int, new func(name string, l ratelimit.Limit) Carried) {
	late := 0
	for i := range n {
		c := &carries{t: t, rng: rand.New(rand.NewPCG(seed+uint64(i), 77)), clock: clock, booking: i%2 == 1, restarts: i%4 >= 2}
		clock.Advance((-clock.Now()%carryTick + carryTick) % carryTick)
		c.limit = c.random()
		c.limits = []ratelimit.Limit{c.limit}
		c.restart()
		c.store = new(fmt.Sprint("carries", i), c.limit)
		c.note("history %d: %v", i, c.limit)
		for range 40 {
			c.step()
		}
		late += c.late
		clock.Advance(100 * carryWindow)
	}
	require.Greater(t, late, n/4, "settlements that followed a change")
}

type carries struct {
	t      *testing.T
	rng    *rand.Rand
	clock  FlipClock
	memory *ratelimit.Keyed[string]
	store  Carried

	limit    ratelimit.Limit
	limits   []ratelimit.Limit // all that were in force
	booking  bool              // it books ahead, under limits that can
	restarts bool
	left     bool          // since the last reset the limit has changed to one of another kind
	newest   time.Duration // the instant of the last booking
	open     []carriedPair
	late     int
	log      []string
}

// carriedPair is one reservation in both limiters.
type carriedPair struct {
	memory, store *ratelimit.Reservation
	cost          int
	due           time.Duration
	changed       bool // the limit has changed since
	other         bool // so has the algorithm: memory and Redis may give back different parts
}

func (c *carries) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf("%d ", c.clock.Now()/carryTick)+fmt.Sprintf(format, args...))
}

// random returns a limit. In a leaky bucket a booking is a place in the queue,
// and Redis knows only the next window of a calendar, so it books under neither.
func (c *carries) random() ratelimit.Limit {
	r := c.rng
	rate := ratelimit.Per(1+r.IntN(12), carryWindow*time.Duration(1+r.IntN(3)))
	bucket := ratelimit.Per(1, carryWindow<<r.IntN(4)/16)
	all := []ratelimit.Limit{
		ratelimit.TokenBucket(bucket, 1+r.IntN(12)), ratelimit.TokenBucket(bucket, 1+r.IntN(12)),
		ratelimit.FixedWindow(rate), ratelimit.SlidingLog(rate), ratelimit.SlidingCounter(rate),
	}
	if !c.booking {
		all = append(all, ratelimit.LeakyBucket(bucket, 1+r.IntN(12)), ratelimit.Calendar(1+r.IntN(12), ratelimit.Minute("UTC")))
	}
	return all[r.IntN(len(all))]
}

func (c *carries) same(what string, memory, store ratelimit.Decision, err1, err2 error) {
	c.t.Helper()
	c.note("%s: %+v, %v", what, memory, err1)
	for _, d := range []*time.Duration{&memory.RetryAfter, &memory.ResetAfter, &memory.NextAfter, &memory.Delay} {
		*d = (*d + time.Microsecond - 1).Truncate(time.Microsecond)
	}
	if memory.Delay > 0 { // a script does not report the next unit behind the booking that it has just made
		memory.NextAfter, store.NextAfter = 0, 0
	}
	if memory != store || (err1 == nil) != (err2 == nil) {
		c.t.Fatalf("%s is in the store\n%+v, %v\nafter\n%s", what, store, err2, strings.Join(c.log, "\n"))
	}
}

// restart gives memory a new limiter with the spending of the old one, and without its former limits. The reservations are over.
func (c *carries) restart() {
	var saved map[string]ratelimit.Saved
	if c.memory != nil {
		saved = maps.Collect(c.memory.Saved())
	}
	var err error
	c.memory, err = ratelimit.New(c.limit, &ratelimit.Options[string]{Clock: c.clock})
	require.NoError(c.t, err)
	require.NoError(c.t, c.memory.Restore(maps.All(saved), 0))
	c.open = nil
}

func (c *carries) adjust(delta int) {
	c.note("adjust by %d", delta)
	require.NoError(c.t, c.memory.Adjust(context.Background(), "k", delta))
	require.NoError(c.t, c.store.Adjust(context.Background(), "k", delta))
	if delta < 0 {
		c.open = nil               // the script does not keep apart the reservations that a grant has given back,
		c.clock.Advance(carryTick) // nor those of its instant
	}
}

// change sets another limit, and denies or takes under it.
func (c *carries) change() {
	next := c.random()
	switch c.rng.IntN(4) {
	case 0:
		next = c.limits[c.rng.IntN(len(c.limits))]
	case 1: // other figures
		if next = c.limit; next.Burst > 0 {
			next.Burst = 1 + c.rng.IntN(12)
		} else {
			next.Rate.Units = 1 + c.rng.IntN(12)
		}
	}
	if next == c.limit {
		return
	}
	c.adjust(1)
	// A script does not compare a spending of the instant of the change with a window that begins then.
	c.clock.Advance(time.Duration(1+c.rng.Int64N(27720)*c.rng.Int64N(2)) * carryTick)
	switch alike := Alike(c.limit, next); {
	case alike:
	case c.restarts:
		c.note("restart")
		c.restart()
	case c.left:
		c.note("reset")
		c.memory.Reset(c.t.Context(), "k")
		require.NoError(c.t, c.store.Reset(c.t.Context(), "k"))
		c.open, c.left = nil, false
	default:
		c.left = true
	}
	c.note("SetLimit(%v)", next)
	require.NoError(c.t, c.memory.SetLimit(next))
	require.NoError(c.t, c.store.SetLimit(next))
	for i := range c.open {
		c.open[i].changed = true
		c.open[i].other = c.open[i].other || next.Algorithm != c.limit.Algorithm
	}
	c.limit, c.limits = next, append(c.limits, next)
	c.take(1)
}

func (c *carries) take(cost int) {
	m, err := c.memory.Take(c.t.Context(), "k", cost)
	s, err2 := c.store.Take(c.t.Context(), "k", cost)
	c.same(fmt.Sprintf("Take(%d)", cost), m, s, err, err2)
}

func (c *carries) reserve(cost int) {
	ahead := time.Duration(0)
	if c.booking {
		ahead = time.Duration(c.rng.Int64N(3*27720)) * carryTick
	}
	m, err := c.memory.Reserve(c.t.Context(), "k", cost, ahead)
	s, err2 := c.store.Reserve(c.t.Context(), "k", cost, ahead)
	c.same(fmt.Sprintf("Reserve(%d, %d)", cost, ahead/carryTick), m.Decision, s.Decision, err, err2)
	// A store does not count the changes of a calendar's units.
	if m.Allowed && c.limit.Algorithm != ratelimit.AlgorithmCalendar {
		c.open = append(c.open, carriedPair{m, s, cost, c.clock.Now() + m.Delay, false, false})
		c.newest = max(c.newest, c.clock.Now()+m.Delay)
	}
}

func (c *carries) settle() {
	if len(c.open) == 0 || c.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return
	}
	i := c.rng.IntN(len(c.open))
	o := c.open[i]
	c.open = slices.Delete(c.open, i, i+1)
	if o.changed {
		c.late++
	}
	actual := c.rng.IntN(2*o.cost + 1)
	if o.other {
		actual = max(actual, o.cost)
	}
	c.note("settle the one due at %d of %d at %d", o.due/carryTick, o.cost, actual)
	require.NoError(c.t, o.memory.Settle(actual))
	require.NoError(c.t, o.store.Settle(actual))
}

func (c *carries) step() {
	capacity := c.limit.Capacity()
	cost := 1 + c.rng.IntN(capacity)
	switch c.rng.IntN(12) {
	case 0, 1:
		c.take(cost)
	case 2, 3, 4:
		c.reserve(cost)
	case 5, 6, 7:
		c.settle()
	case 8:
		delta := c.rng.IntN(3*capacity) - capacity
		if c.newest > c.clock.Now() {
			delta = max(delta, 0)
		}
		c.adjust(delta)
	default:
		c.change()
	}
	m, err := c.memory.Peek(c.t.Context(), "k", 1)
	s, err2 := c.store.Peek(c.t.Context(), "k", 1)
	c.same("Peek(1)", m, s, err, err2)
	per := c.limit.RefillTime()
	spans := []time.Duration{0, 0, 0, carryTick, m.RetryAfter, m.RetryAfter - carryTick, per / 7, per / 3, per, m.ResetAfter / 2, m.ResetAfter}
	if next := spans[c.rng.IntN(len(spans))]; next > 0 {
		c.clock.Advance((next + carryTick - 1) / carryTick * carryTick)
	}
}
