package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// algorithms lists Flips' algorithms.
var algorithms = []ratelimit.Algorithm{ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket, ratelimit.AlgorithmFixedWindow,
	ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter, ratelimit.AlgorithmCalendar}

// FlipClock is a clock with dates.
type FlipClock interface {
	Clock
	Wall() time.Time
}

// Flipped is a limiter whose limit can change.
type Flipped interface {
	ratelimit.Reserver[string]
	Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error)
	SetLimit(limit ratelimit.Limit) error
}

// Alike reports whether spending is regained at the same instants after a change from
// one limit to the other. If a limiter in memory changes to another kind of limit and
// back, the former limit continues to count. Stores convert the spending at each change.
func Alike(a, b ratelimit.Limit) bool {
	buckets := func(l ratelimit.Limit) bool { return l.Algorithm <= ratelimit.AlgorithmLeakyBucket }
	switch a.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return buckets(b)
	case ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmCalendar:
		return a.Algorithm == b.Algorithm
	}
	return a.Algorithm == b.Algorithm && a.Rate.Per == b.Rate.Per
}

// Flips tests keys whose limit changes back and forth between two limits, in n histories for each pair of
// algorithms. It settles reservations before and after the changes. The real costs must stay within the bound in
// docs/promises.md. In every second history, one process changes its limit. In the others, each of two processes
// has one of the limits. The function new returns a limiter sharing its keys with all limiters of its name.
func Flips(t testing.TB, clock FlipClock, seed uint64, n int, new func(name string, l ratelimit.Limit) Flipped) {
	played, late := 0, 0
	for _, a := range algorithms {
		for _, b := range algorithms {
			r := rand.New(rand.NewPCG(seed, uint64(a)<<8|uint64(b)))
			for i := range n {
				f := newFlips(r, clock, a, b)
				for k, l := range f.limits {
					f.limiters[k] = new(fmt.Sprint("flips", played), l)
				}
				f.alone = i%2 == 0
				for range 40 {
					f.step(t, fmt.Sprintf("%v %v %d", a, b, i))
				}
				f.bound(t)
				played, late = played+1, late+f.late
			}
		}
	}
	require.Greater(t, late, played, "settlements that followed a change")
}

type flips struct {
	r      *rand.Rand
	clock  FlipClock
	limits [2]ratelimit.Limit
	tick   time.Duration

	limiters [2]Flipped // one for each process
	alone    bool       // whether only the first limiter decides, and its limit changes

	i, changes, late int
	// one step in seldom changes the limit; pause is the longest pause, in ticks; of 4 charges, take are never settled
	seldom, pause, take int
	all, open           []*flipCharge
	log                 []string
}

type flipCharge struct {
	*ratelimit.Reservation
	at, until  time.Duration // the instant of the charge; the instant when its limit has regained it
	cost, real int
	changes    int
	algorithm  ratelimit.Algorithm
}

func newFlips(r *rand.Rand, clock FlipClock, a, b ratelimit.Algorithm) *flips {
	f := &flips{r: r, clock: clock, tick: time.Microsecond, i: r.IntN(2), seldom: 1 + r.IntN(6), pause: 1 + r.IntN(10), take: r.IntN(4)}
	if a == ratelimit.AlgorithmCalendar || b == ratelimit.AlgorithmCalendar {
		f.tick = time.Hour
	}
	per := time.Duration(1+r.IntN(40)) * f.tick
	for i, algorithm := range []ratelimit.Algorithm{a, b} {
		if r.IntN(3) > 0 {
			per = time.Duration(1+r.IntN(40)) * f.tick
		}
		rate, burst := ratelimit.Per(1+r.IntN(8), per), 1+r.IntN(12)
		f.limits[i] = map[ratelimit.Algorithm]ratelimit.Limit{
			ratelimit.AlgorithmTokenBucket:    ratelimit.TokenBucket(rate, burst),
			ratelimit.AlgorithmLeakyBucket:    ratelimit.LeakyBucket(rate, burst),
			ratelimit.AlgorithmFixedWindow:    ratelimit.FixedWindow(rate),
			ratelimit.AlgorithmSlidingLog:     ratelimit.SlidingLog(rate),
			ratelimit.AlgorithmSlidingCounter: ratelimit.SlidingCounter(rate),
			ratelimit.AlgorithmCalendar:       ratelimit.Calendar(rate.Units, ratelimit.Day("UTC")),
		}[algorithm]
	}
	return f
}

func (f *flips) note(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf("%v: ", f.clock.Now())+fmt.Sprintf(format, args...))
}

// step lets time pass, may change the limit, settles some reservations, and spends.
func (f *flips) step(t testing.TB, key string) {
	f.clock.Advance(time.Duration(f.r.IntN(f.pause)) * f.tick)
	if f.r.IntN(f.seldom) == 0 {
		f.i, f.changes = 1-f.i, f.changes+1
		f.note("%v", f.limits[f.i])
	}
	l, limit, now := f.limiters[f.i], f.limits[f.i], f.clock.Now()
	if f.alone {
		l = f.limiters[0]
		require.NoError(t, l.SetLimit(limit))
	}
	for len(f.open) > 0 && f.r.IntN(3) == 0 {
		k := f.r.IntN(len(f.open))
		c := f.open[k]
		f.open = slices.Delete(f.open, k, k+1)
		changed := c.changes != f.changes
		if c.real = f.r.IntN(c.cost + 1); changed && c.algorithm == limit.Algorithm && c.until <= now {
			continue // the bound does not cover this case
		}
		if changed {
			f.late++
		}
		f.note("settle %d of %v at %d", c.cost, c.at, c.real)
		require.NoError(t, c.Settle(c.real))
	}
	d, err := l.Peek(t.Context(), key, 1)
	require.NoError(t, err)
	if d.Remaining == 0 {
		return
	}
	cost := d.Remaining
	if f.r.IntN(2) == 0 {
		cost = 1 + f.r.IntN(cost)
	}
	c := &flipCharge{at: now, until: now + limit.Rate.Per, cost: cost, real: cost, changes: f.changes, algorithm: limit.Algorithm}
	if limit.Algorithm == ratelimit.AlgorithmCalendar {
		_, end := limit.Period.Window(f.clock.Wall())
		c.until = now + end.Sub(f.clock.Wall())
	}
	f.note("spend %d", cost)
	f.all = append(f.all, c)
	if f.r.IntN(4) < f.take {
		d, err := l.Take(t.Context(), key, cost)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		return
	}
	ahead := time.Duration(0)
	if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		ahead = 1000 * time.Hour // longer than any delay in the queue
	}
	c.Reservation, err = l.Reserve(t.Context(), key, cost, ahead)
	require.NoError(t, err)
	require.True(t, c.Allowed)
	f.open = append(f.open, c)
}

// bound fails the test if the real costs in an interval exceed the larger capacity plus the units
// regained by both limits. For fixed windows of different lengths, it adds up the capacities.
func (f *flips) bound(t testing.TB) {
	most := max(f.limits[0].Capacity(), f.limits[1].Capacity())
	windows, fixed := 0, false
	for _, l := range f.limits {
		if fixed = fixed || l.Algorithm == ratelimit.AlgorithmFixedWindow; l.Algorithm == ratelimit.AlgorithmFixedWindow || l.Algorithm == ratelimit.AlgorithmSlidingCounter {
			windows++
		}
	}
	if windows == 2 && fixed && f.limits[0].Rate.Per != f.limits[1].Rate.Per {
		most = f.limits[0].Capacity() + f.limits[1].Capacity()
	}
	for k, first := range f.all {
		sum := 0
		for _, c := range f.all[k:] {
			sum += c.real
			if bound := most + regain(f.limits[0], c.at-first.at) + regain(f.limits[1], c.at-first.at); sum > bound {
				t.Fatalf("%d from %v to %v, want at most %d, of %v\n%s", sum, first.at, c.at, bound, f.limits, strings.Join(f.log, "\n"))
			}
		}
	}
}

// regain returns the maximum number of units that are spent in a span and regained within it.
func regain(l ratelimit.Limit, span time.Duration) int {
	units, per := l.Rate.Units, l.Rate.Per
	if l.Algorithm == ratelimit.AlgorithmCalendar {
		per = l.RefillTime()
	}
	ended := int((span + per - 1) / per) // ended windows
	switch part := int(time.Duration(units) * span / per); l.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return part
	case ratelimit.AlgorithmSlidingLog:
		return units * int(span/per)
	case ratelimit.AlgorithmSlidingCounter: // weights are rounded up, so each window regains one unit late
		return min(units*ended, part+2*ended)
	}
	return units * ended
}
