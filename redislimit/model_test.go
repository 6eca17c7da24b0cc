package redislimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// twin makes the same calls on a limiter in Redis and on a limiter in memory.
type twin struct {
	t       *testing.T
	rng     *rand.Rand
	clock   *ratelimittest.Clock
	memory  *ratelimit.Keyed[string]
	remote  *Limiter
	limit   ratelimit.Limit
	open    []openPair
	booking bool // it books ahead
	silent  bool // the script does not report a log's debt and its next unit
	nearby  bool // it books no further than the next window, as Redis does with a calendar
	solvent bool // it makes no debts
	log     []string
	newest  time.Duration // the time of the last booking
	granted time.Duration // the instant after the last grant
}

// openPair is one reservation in both limiters.
type openPair struct {
	memory, remote *ratelimit.Reservation
	cost           int
	due            time.Duration // when it begins
}

const twinKey = "k"

func newTwin(t *testing.T, client redis.UniversalClient, limit ratelimit.Limit, name string, seed uint64) *twin {
	clock := new(ratelimittest.Clock)
	memory, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	remote, err := New(client, limit, &Options{Name: name, Timeout: 10 * time.Second})
	require.NoError(t, err)
	return &twin{t: t, rng: rand.New(rand.NewPCG(testsize.Seed(seed), 1)), clock: clock, memory: memory, remote: onClock(remote, clock), limit: limit, booking: true}
}

func (w *twin) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%v ", w.clock.Now())+fmt.Sprintf(format, args...))
}

func (w *twin) same(what string, memory, remote ratelimit.Decision, err1, err2 error) {
	w.t.Helper()
	w.note("%s: %+v, %v", what, memory, err1)
	if err1 != nil && err2 != nil {
		return
	}
	if w.silent {
		memory.Debt, remote.Debt, memory.NextAfter, remote.NextAfter = 0, 0, 0, 0
	}
	if inMicroseconds(memory) != remote || (err1 == nil) != (err2 == nil) {
		w.t.Fatalf("%v: %s answers in Redis\n%+v, %v\nafter\n%s", w.limit, what, remote, err2, tail(w.log))
	}
}

// inMicroseconds rounds times up, as Redis does. After a change of limits, a window's share may not be whole microseconds.
func inMicroseconds(d ratelimit.Decision) ratelimit.Decision {
	for _, x := range []*time.Duration{&d.RetryAfter, &d.ResetAfter, &d.NextAfter, &d.Delay} {
		*x = (*x + time.Microsecond - 1).Truncate(time.Microsecond)
	}
	return d
}

func tail(log []string) (s string) {
	for _, line := range log[max(0, len(log)-25):] {
		s += line + "\n"
	}
	return s
}

func (w *twin) cost() int {
	capacity := w.limit.Capacity()
	costs := []int{0, 1, 1, 2, capacity, 1 + w.rng.IntN(capacity), 1 + w.rng.IntN(max(1, capacity/3))}
	return min(costs[w.rng.IntN(len(costs))], capacity)
}

func (w *twin) step(n int) {
	ctx, cost := context.Background(), w.cost()
	switch w.rng.IntN(10) {
	case 0, 1:
		w.take(cost)
	case 2:
		d, err := w.memory.Peek(context.Background(), twinKey, cost)
		e, err2 := w.remote.Peek(ctx, twinKey, cost)
		w.same(fmt.Sprintf("Peek(%d)", cost), d, e, err, err2)
	case 3, 4, 5:
		w.reserve(cost)
	case 6, 7:
		w.settle()
	case 8:
		w.adjust()
	}
	d, err := w.memory.Peek(context.Background(), twinKey, 1)
	e, err2 := w.remote.Peek(ctx, twinKey, 1)
	w.same("Peek(1)", d, e, err, err2)
	w.pause(d)
}

func (w *twin) take(cost int) {
	ctx := context.Background()
	d, err := w.memory.Take(ctx, twinKey, cost)
	e, err2 := w.remote.Take(ctx, twinKey, cost)
	w.same(fmt.Sprintf("Take(%d)", cost), d, e, err, err2)
	if d.Allowed && cost > 0 {
		w.entered()
	}
}

func (w *twin) reserve(cost int) {
	ahead := time.Duration(0)
	if w.booking {
		ahead = time.Duration(w.rng.Int64N(int64(3*w.per())/1000)) * time.Microsecond
		if d, err := w.memory.Peek(context.Background(), twinKey, cost); w.nearby && err == nil && d.RetryAfter > w.windowLeft() {
			ahead = 0
		}
	}
	r, err := w.memory.Reserve(context.Background(), twinKey, cost, ahead)
	q, err2 := w.remote.Reserve(context.Background(), twinKey, cost, ahead)
	w.same(fmt.Sprintf("Reserve(%d, %v)", cost, ahead), r.Decision, q.Decision, err, err2)
	if due := w.clock.Now() + r.Delay; r.Allowed && cost > 0 {
		// the script does not keep reservations apart at a grant's instant
		if w.limit.Algorithm != ratelimit.AlgorithmTokenBucket || due >= w.granted {
			w.open = append(w.open, openPair{r, q, cost, due})
		}
		w.newest = max(w.newest, w.clock.Now()+r.Delay)
	}
}

// windowLeft returns the time until a calendar's next window begins.
func (w *twin) windowLeft() time.Duration {
	_, ends := w.limit.Period.Window(w.clock.Wall())
	return ends.Sub(w.clock.Wall())
}

// settle settles one of the open reservations at random. Under a leaky bucket it settles the last one: a
// place in the middle of a queue comes back in memory when all later places leave, but never in Redis.
func (w *twin) settle() {
	if len(w.open) == 0 {
		return
	}
	i := w.rng.IntN(len(w.open))
	if w.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		i = len(w.open) - 1
	}
	o := w.open[i]
	w.open = append(w.open[:i], w.open[i+1:]...)
	actual := []int{0, 0, o.cost / 2, o.cost, w.rng.IntN(2*o.cost + 1)}[w.rng.IntN(5)]
	if w.solvent {
		actual = min(actual, o.cost)
	}
	w.note("settle the one due at %v of %d at %d", o.due, o.cost, actual)
	require.NoError(w.t, o.memory.Settle(actual))
	require.NoError(w.t, o.remote.Settle(actual))
	if actual > o.cost {
		w.entered()
	}
}

// entered records that a cost has entered a queue and stays. Earlier reservations are then no longer at the queue's end.
func (w *twin) entered() {
	if w.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		w.open = nil
	}
}

func (w *twin) adjust() {
	delta := w.rng.IntN(3*w.limit.Capacity()) - w.limit.Capacity()
	if d, err := w.memory.Peek(context.Background(), twinKey, 0); w.solvent && err == nil {
		delta = min(delta, d.Remaining)
	}
	w.adjustBy(delta)
}

func (w *twin) adjustBy(delta int) {
	w.note("adjust by %d", delta)
	require.NoError(w.t, w.memory.Adjust(context.Background(), twinKey, delta))
	require.NoError(w.t, w.remote.Adjust(context.Background(), twinKey, delta))
	w.entered()
	if delta < 0 {
		w.granted = w.clock.Now() + 1
	}
	if delta < 0 && w.limit.Algorithm == ratelimit.AlgorithmCalendar {
		w.open = nil // the grant may have given these bookings back already
	}
}

// per returns a window's length.
func (w *twin) per() time.Duration {
	if w.limit.Algorithm == ratelimit.AlgorithmCalendar {
		return w.limit.RefillTime()
	}
	return w.limit.Rate.Per
}

func (w *twin) pause(d ratelimit.Decision) {
	per := w.per()
	spans := []time.Duration{0, 0, time.Microsecond, d.RetryAfter, d.RetryAfter - time.Microsecond, per / 7, per / 3, per, d.ResetAfter / 2}
	if w.rng.IntN(20) == 0 {
		spans = []time.Duration{d.ResetAfter, d.ResetAfter - time.Microsecond, 2 * per}
	}
	if next := spans[w.rng.IntN(len(spans))]; next > 0 {
		w.clock.Advance(next / time.Microsecond * time.Microsecond)
	}
}

// twinLimits returns limits whose prices and window shares are whole microseconds. So both limiters book the same instants.
func twinLimits() (all []ratelimit.Limit) {
	rates := []ratelimit.Rate{ratelimit.PerSecond(10), ratelimit.Per(4, 10*time.Millisecond), ratelimit.PerMinute(100), ratelimit.Per(1, time.Second)}
	for _, r := range rates {
		all = append(all, ratelimit.TokenBucket(r, 7), ratelimit.TokenBucket(r, 40), ratelimit.LeakyBucket(r, 12),
			ratelimit.FixedWindow(r), ratelimit.SlidingLog(r))
	}
	for _, r := range []ratelimit.Rate{ratelimit.Per(10, 25200*time.Microsecond), ratelimit.Per(4, 12*time.Millisecond), ratelimit.Per(1, time.Second)} {
		all = append(all, ratelimit.SlidingCounter(r))
	}
	return all
}

func TestAnswersAgreeWithTheLimiterInMemory(t *testing.T) {
	verdicts(t)
	client := startServer(t).client()
	for i, limit := range twinLimits() {
		t.Run(limit.String(), func(t *testing.T) {
			for seed := range histories(3) {
				w := newTwin(t, client, limit, fmt.Sprintf("twin%d-%d", i, seed), uint64(seed))
				for n := range 120 {
					w.step(n)
				}
			}
		})
	}
}
