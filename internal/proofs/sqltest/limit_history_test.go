package sqltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// A history mixes all kinds of calls, each made by some process of a fleet. Each result is compared with that of a
// limiter in memory. The suite's model also tests these processes, but has no reservations and no changes of the limit.
//
// The limiter in memory counts in nanoseconds, and sqllimit in microseconds. So the clock in
// memory moves by a thousandth of the time: its unit then equals sqllimit's, and both round
// alike. Calendars permit no such scale, and need none, because their instants are whole seconds.
type twin struct {
	t      *testing.T
	rng    *rand.Rand
	fleet  *limiter
	memory *ratelimit.Keyed[string]
	clock  *ratelimittest.Clock // the clock in memory
	scale  time.Duration
	limit  ratelimit.Limit
	left   bool // whether the limit has changed to another kind
	open   []pair
	log    []string
}

// pair is one reservation in memory and in the fleet.
type pair struct {
	memory, fleet *ratelimit.Reservation
	key           string
	cost          int
}

var twinKeys = []string{"a", "b", ""}

// in returns a limit in the clock's units in memory.
func (w *twin) in(l ratelimit.Limit) ratelimit.Limit {
	l.Rate.Per /= w.scale
	return l
}

func (w *twin) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%v: ", w.fleet.f.clock.Now())+fmt.Sprintf(format, args...))
}

func (w *twin) fail(what string, memory, fleet any) {
	w.t.Helper()
	w.t.Fatalf("%v: %s\nin memory     %+v\nover processes %+v\nafter\n%s", w.limit, what, memory, fleet, strings.Join(w.log[max(0, len(w.log)-30):], "\n"))
}

// same compares two results.
func (w *twin) same(what string, memory, fleet ratelimit.Decision, err, err2 error) {
	w.t.Helper()
	w.note("%s: %+v, %v", what, fleet, err2)
	memory.Limit = w.limit
	for _, d := range []*time.Duration{&memory.Delay, &memory.RetryAfter, &memory.ResetAfter, &memory.NextAfter} {
		*d *= w.scale
	}
	if err != nil {
		memory, fleet.Limit = ratelimit.Decision{Limit: w.limit}, w.limit
	}
	if memory != fleet {
		w.fail(what, memory, fleet)
	}
	w.sameErr(what, err, err2)
}

func (w *twin) sameErr(what string, memory, fleet error) {
	w.t.Helper()
	for _, e := range sentErrors {
		if errors.Is(memory, e) != errors.Is(fleet, e) || (memory == nil) != (fleet == nil) {
			w.fail(what, memory, fleet)
		}
	}
}

func (w *twin) key() string { return twinKeys[w.rng.IntN(len(twinKeys))] }

func (w *twin) cost() int {
	capacity := w.limit.Capacity()
	costs := []int{0, 1, 1, 2, 3, capacity, 1 + w.rng.IntN(capacity), 1 + w.rng.IntN(max(1, capacity/3)), capacity + 1, -1}
	return costs[w.rng.IntN(len(costs))]
}

// part returns a cost that may be charged.
func (w *twin) part() int { return min(max(1, w.cost()), w.limit.Capacity()) }

func (w *twin) ahead() time.Duration {
	if w.rng.IntN(3) == 0 {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(3*w.per())/1000)) * time.Microsecond
}

func (w *twin) delta() int { return w.rng.IntN(3*w.limit.Capacity()) - 3*w.limit.Capacity()/2 }

func (w *twin) per() time.Duration {
	if w.limit.Algorithm == ratelimit.AlgorithmCalendar {
		return w.limit.RefillTime()
	}
	return w.limit.Rate.Per
}

func (w *twin) step() {
	ctx, key := context.Background(), w.key()
	switch w.rng.IntN(16) {
	case 0, 1:
		cost := w.cost()
		got, want := w.fleet.Allow(key, cost), w.memory.Allow(key, cost)
		w.note("Allow(%q, %d): %v", key, cost, got)
		if got != want {
			w.fail("Allow", want, got)
		}
	case 2, 3:
		cost := w.cost()
		d, err := w.memory.Take(ctx, key, cost)
		e, err2 := w.fleet.Take(ctx, key, cost)
		w.same(fmt.Sprintf("Take(%q, %d)", key, cost), d, e, err, err2)
	case 4, 5, 6, 7:
		w.reserve(key)
	case 8, 9, 10:
		w.settle()
	case 11:
		delta := w.delta()
		w.adjust(key, delta)
	case 12:
		if w.rng.IntN(3) == 0 {
			w.reset(key)
		}
	case 13:
		if w.rng.IntN(2) == 0 {
			w.setLimit()
		}
	case 14, 15:
		w.together(key)
	}
	w.pause(w.peek(w.key(), 1))
}

func (w *twin) peek(key string, cost int) ratelimit.Decision {
	d, err := w.memory.Peek(context.Background(), key, cost)
	e, err2 := w.fleet.Peek(context.Background(), key, cost)
	w.same(fmt.Sprintf("Peek(%q, %d)", key, cost), d, e, err, err2)
	return e
}

func (w *twin) reset(key string) {
	w.note("Reset(%q)", key)
	w.memory.Reset(context.Background(), key)
	require.NoError(w.t, w.fleet.Reset(context.Background(), key))
}

func (w *twin) adjust(key string, delta int) {
	w.note("Adjust(%q, %d)", key, delta)
	require.NoError(w.t, w.memory.Adjust(context.Background(), key, delta))
	require.NoError(w.t, w.fleet.Adjust(context.Background(), key, delta))
	w.granted(delta)
}

// granted records a grant. If a grant has given a calendar's booking
// back, it is not specified whether the booking can be given back again.
func (w *twin) granted(delta int) {
	if delta < 0 && w.limit.Algorithm == ratelimit.AlgorithmCalendar {
		w.open = nil
	}
}

func (w *twin) reserve(key string) {
	cost, ahead := w.cost(), w.ahead()
	r, err := w.memory.Reserve(context.Background(), key, cost, ahead/w.scale)
	q, err2 := w.fleet.Reserve(context.Background(), key, cost, ahead)
	w.same(fmt.Sprintf("Reserve(%q, %d, %v)", key, cost, ahead), r.Decision, q.Decision, err, err2)
	if q.Allowed {
		w.open = append(w.open, pair{r, q, key, cost})
	}
}

func (w *twin) settle() {
	if len(w.open) == 0 {
		return
	}
	i := w.rng.IntN(len(w.open))
	o := w.open[i]
	w.open = slices.Delete(w.open, i, i+1)
	actual := []int{0, 0, o.cost / 2, o.cost, w.rng.IntN(2*o.cost + 2)}[w.rng.IntN(5)]
	w.note("settle %d of %q at %d", o.cost, o.key, actual)
	require.NoError(w.t, o.memory.Settle(actual))
	require.NoError(w.t, o.fleet.Settle(actual))
}

// setLimit sets another limit in all processes. In memory a key adopts it at its next decision.
// A row adopts it at its next change, as of the first decision. So each key is changed first.
func (w *twin) setLimit() {
	for _, key := range twinKeys {
		w.adjust(key, 1)
		w.adjust(key, -1)
	}
	limit := w.another()
	if !model.Alike(w.limit, limit) {
		if w.left { // in memory, the former limits continue to count
			for _, key := range twinKeys {
				w.reset(key)
			}
			w.open = nil
		}
		w.left = true
	}
	w.limit = limit
	written := w.rng.IntN(2) == 0
	if !written {
		w.open = nil // if a row was not written since the change, a settlement gives back as before the change: more than in memory
	}
	w.note("SetLimit(%v)", w.limit)
	require.NoError(w.t, w.memory.SetLimit(w.in(w.limit)))
	require.NoError(w.t, w.fleet.SetLimit(w.limit))
	for _, key := range twinKeys {
		d, err := w.memory.Take(context.Background(), key, 0)
		e, err2 := w.fleet.Take(context.Background(), key, 0)
		w.same(fmt.Sprintf("Take(%q, 0)", key), d, e, err, err2)
		if written || e.ResetAfter == 0 { // in memory, a fresh key stays under its old limit until it is charged
			w.adjust(key, 1)
		}
	}
}

// another returns a limit with the same unit of time.
func (w *twin) another() ratelimit.Limit {
	if w.limit.Algorithm == ratelimit.AlgorithmCalendar {
		return anyLimit(w.rng, ratelimit.AlgorithmCalendar)
	}
	return anyLimit(w.rng, twinAlgorithms[w.rng.IntN(len(twinAlgorithms)-1)])
}

// together makes one process decide on several calls with one read and one write.
func (w *twin) together(key string) {
	ctx, c := context.Background(), w.fleet.call("Together", key, 0)
	type answer struct {
		what string
		d    ratelimit.Decision
		err  error
		open *ratelimit.Reservation
		cost int
	}
	var want []answer
	for range 2 + w.rng.IntN(4) {
		s := w.fleet.call("Take", key, w.part())
		var a answer
		switch w.rng.IntN(4) {
		case 0:
			a.d, a.err = w.memory.Take(ctx, key, s.N)
		case 1:
			s.Do = "Peek"
			a.d, a.err = w.memory.Peek(context.Background(), key, s.N)
		case 2:
			s.Do, s.Ahead = "Reserve", w.ahead()
			var r *ratelimit.Reservation
			if r, a.err = w.memory.Reserve(ctx, key, s.N, s.Ahead/w.scale); r.Allowed {
				a.open, a.cost = r, s.N
			}
			a.d = r.Decision
		case 3:
			s.Do, s.N = "Adjust", cmp.Or(w.delta(), 1) // an Adjust by 0 reads nothing
			a.err = w.memory.Adjust(context.Background(), key, s.N)
		}
		a.what = fmt.Sprintf("together: %s(%q, %d, %v)", s.Do, key, s.N, s.Ahead)
		want = append(want, a)
		c.Together = append(c.Together, *w.fleet.f.made(s))
	}
	by := w.fleet.by()
	r := w.fleet.f.perform(ctx, by, c)
	require.Len(w.t, r.Together, len(want), r.Text)
	require.Equal(w.t, 2, r.Reads, "one for the decision before them, and one for all")
	for i, a := range want {
		e, err := r.Together[i].decision()
		if c.Together[i].Do == "Adjust" {
			w.note("%s", a.what)
			w.sameErr(a.what, a.err, err)
			w.granted(c.Together[i].N)
			continue
		}
		w.same(a.what, a.d, e, a.err, err)
		if a.open != nil {
			w.open = append(w.open, pair{a.open, ratelimit.NewReservation(e, w.fleet.settler(by, c.Together[i].ID)), key, a.cost})
		}
	}
}

func (w *twin) pause(d ratelimit.Decision) {
	per := w.per()
	spans := []time.Duration{0, 0, time.Microsecond, d.RetryAfter, d.RetryAfter - time.Microsecond, per / 7, per / 3, per, d.ResetAfter / 2}
	if w.rng.IntN(20) == 0 {
		spans = []time.Duration{d.ResetAfter, d.ResetAfter - time.Microsecond, 2 * per}
	}
	if next := spans[w.rng.IntN(len(spans))].Truncate(time.Microsecond); next > 0 && next < math.MaxInt64/4 {
		w.fleet.f.clock.Advance(next)
		w.clock.Advance(next / w.scale)
	}
}

// twinAlgorithms are all algorithms, with the calendar last.
var twinAlgorithms = []ratelimit.Algorithm{ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket, ratelimit.AlgorithmFixedWindow,
	ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter, ratelimit.AlgorithmCalendar}

func anyLimit(rng *rand.Rand, a ratelimit.Algorithm) (l ratelimit.Limit) {
	units := []int{1, 2, 3, 7, 10, 40}[rng.IntN(6)]
	per := []time.Duration{time.Second, time.Minute, 7 * time.Millisecond, 11 * time.Hour, 997 * time.Microsecond}[rng.IntN(5)]
	burst := []int{1, 2, 5, 12, 40}[rng.IntN(5)]
	switch r := ratelimit.Per(units, per); a {
	case ratelimit.AlgorithmTokenBucket:
		l = ratelimit.TokenBucket(r, burst)
	case ratelimit.AlgorithmLeakyBucket:
		l = ratelimit.LeakyBucket(r, burst)
	case ratelimit.AlgorithmFixedWindow:
		l = ratelimit.FixedWindow(r)
	case ratelimit.AlgorithmSlidingLog:
		l = ratelimit.SlidingLog(r)
	case ratelimit.AlgorithmSlidingCounter:
		l = ratelimit.SlidingCounter(r)
	case ratelimit.AlgorithmCalendar:
		l = ratelimit.Calendar(units, []ratelimit.Period{ratelimit.Day("Europe/Berlin"), ratelimit.Month("UTC", 31), ratelimit.Week("America/New_York", time.Monday)}[rng.IntN(3)])
	}
	return l.Named("twin")
}

func randomHistories(t *testing.T, f *fleet) {
	for _, a := range twinAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			for seed := range testsize.Of(1, 60) {
				rng := rand.New(rand.NewPCG(testsize.Seed(uint64(seed)), uint64(a)))
				w := &twin{t: t, rng: rng, clock: new(ratelimittest.Clock), scale: 1000, limit: anyLimit(rng, a)}
				f.clock.Set(time.Duration(rng.Int64N(int64(50*365*24*time.Hour/time.Second))) * time.Second)
				f.clock.SetWall(time.Unix(0, 0).Add(f.clock.Now()))
				if a == ratelimit.AlgorithmCalendar {
					w.scale = 1
					w.clock.SetWall(f.clock.Wall())
				}
				var err error
				w.memory, err = ratelimit.New(w.in(w.limit), &ratelimit.Options[string]{Clock: w.clock})
				require.NoError(t, err)
				w.fleet = &limiter{f: f, name: fmt.Sprintf("twin-%v-%d", a, seed), limit: w.limit}
				for range 60 {
					w.step()
				}
			}
		})
	}
}
