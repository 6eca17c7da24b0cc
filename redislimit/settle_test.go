package redislimit

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// past is a token bucket's key on Redis, with all its events in the order of their instants.
type past struct {
	t      *testing.T
	rng    *rand.Rand
	client *redis.Client
	clock  *ratelimittest.Clock
	l      *Limiter
	key    string
	events []*happened
	open   []*happened

	still, grants bool // many calls come within one instant, and some are grants
	passes        bool // some charges are given back at once or later, as if another limiter had denied the call

	// The history begins with crowd reservations and their settlements. Each reservation is made
	// at a higher debt than the last one, so each settlement gives back at most a little more.
	crowd int
	level int64

	kept  map[int64]bool // the instants of reservations since the debt was last paid
	exact bool           // the script keeps all data it needs
}

// happened is a charge or a grant. A grant's real cost is below 0.
type happened struct {
	at, cost, real int64
	res            *ratelimit.Reservation
}

func newPast(t *testing.T, client *redis.Client, seed uint64) *past {
	rng := rand.New(rand.NewPCG(testsize.Seed(seed), 9))
	rates := []ratelimit.Rate{
		ratelimit.Per(1, 3*time.Microsecond), ratelimit.Per(10, 100*time.Microsecond), ratelimit.PerSecond(100),
		ratelimit.Per(7, 10*time.Microsecond), ratelimit.Per(7, 3*time.Microsecond), ratelimit.Per(13, 100*time.Microsecond),
	}
	limit := ratelimit.TokenBucket(rates[rng.IntN(len(rates))], []int{5, 20, 200}[rng.IntN(3)])
	crowd := 0
	if seed%3 == 0 {
		crowd, limit.Burst = 50, 200
	}
	p := &past{crowd: crowd, t: t, rng: rng, client: client, clock: new(ratelimittest.Clock), key: fmt.Sprint(seed), kept: map[int64]bool{}}
	l, err := New(client, limit, &Options{Name: "past", Timeout: 10 * time.Second})
	require.NoError(t, err)
	p.l = onClock(l, p.clock)
	p.still, p.grants = rng.IntN(3) == 0, rng.IntN(2) == 0
	return p
}

func (p *past) plan() *plan { return p.l.plan.Load() }

func (p *past) now() int64 { return p.l.store.clock() }

// owed returns the time until the key has regained all: as stored in Redis, and as
// replayed with the real costs. Both are in parts of a microsecond, 1/units of the plan.
func (p *past) owed() (stored, replayed int64) {
	units, now := p.plan().units, p.now()*p.plan().units
	b, err := p.client.Get(context.Background(), p.l.space.key(p.key)).Bytes()
	if err != redis.Nil {
		require.NoError(p.t, err)
		var wide [2][8]byte
		copy(wide[0][1:], b[stateAt:])
		copy(wide[1][1:], b[stateN:])
		stored = int64(binary.BigEndian.Uint64(wide[0][:]))*units + int64(binary.BigEndian.Uint64(wide[1][:]))
	}
	for _, e := range p.events {
		if e.real != 0 {
			replayed = max(e.at*units, max(replayed, e.at*units)+e.real*p.plan().per)
		}
	}
	return max(0, stored-now), max(0, replayed-now)
}

func (p *past) add(e *happened) {
	i := len(p.events)
	for i > 0 && p.events[i-1].at > e.at {
		i--
	}
	p.events = slices.Insert(p.events, i, e)
}

// newest returns the instant of the last booking, or now.
func (p *past) newest() int64 {
	at := p.now()
	for _, e := range p.events {
		if e.real > 0 {
			at = max(at, e.at)
		}
	}
	return at
}

// cost returns a random cost. The cost is small compared with the burst in a crowd,
// and otherwise half of the time, so many reservations are open at the same time.
func (p *past) cost() int {
	most := p.plan().capacity
	if p.crowd > 0 || p.rng.IntN(2) == 0 {
		most = max(1, most/10)
	}
	return int(1 + p.rng.Int64N(most))
}

func (p *past) step() {
	ctx, price := context.Background(), 1+p.plan().per/p.plan().units
	if move := p.rng.IntN(4); p.crowd <= 0 && (!p.still || p.rng.IntN(8) == 0) {
		p.clock.Advance(time.Duration([]int64{0, 1, p.rng.Int64N(2*price + 1), p.rng.Int64N(9)}[move]) * time.Microsecond)
		if p.rng.IntN(40) == 0 {
			p.clock.Advance(time.Duration(p.rng.Int64N(price*p.plan().capacity+2)) * time.Microsecond)
		}
	}
	if stored, _ := p.owed(); stored == 0 && !p.kept[p.now()] {
		clear(p.kept)
		p.exact = true
	}
	if p.passes && p.crowd <= 0 && p.rng.IntN(4) == 0 {
		p.pass()
	}
	op := p.rng.IntN(20)
	switch p.crowd--; {
	case p.crowd > 20:
		stored, _ := p.owed()
		p.level += 1 + p.rng.Int64N(2)
		p.clock.Advance(time.Duration(max(1, stored/p.plan().units-p.level)) * time.Microsecond)
		op = 3
	case p.crowd > 0:
		op = 12
	}
	switch {
	case op < 3:
		cost := p.cost()
		d, err := p.l.Take(ctx, p.key, cost)
		require.NoError(p.t, err)
		if d.Allowed {
			p.add(&happened{p.now(), int64(cost), int64(cost), nil})
		}
	case op < 12:
		cost, ahead := p.cost(), time.Duration(0)
		if p.rng.IntN(4) == 0 {
			ahead = time.Duration(p.rng.Int64N(2*price*p.plan().capacity)) * time.Microsecond
		}
		r, err := p.l.Reserve(ctx, p.key, cost, ahead)
		require.NoError(p.t, err)
		if r.Allowed {
			e := &happened{p.now() + int64(r.Delay/time.Microsecond), int64(cost), int64(cost), r}
			p.add(e)
			p.open = append(p.open, e)
			p.kept[e.at] = true
			p.exact = p.exact && len(p.kept) <= maxOpens
		}
	case op < 17 && len(p.open) > 0:
		i := p.rng.IntN(len(p.open))
		e := p.open[i]
		p.open = slices.Delete(p.open, i, i+1)
		if actual := []int64{0, p.rng.Int64N(e.cost + 1), p.rng.Int64N(2*e.cost + 1), -1}[p.rng.IntN(4)]; actual > e.cost {
			p.add(&happened{p.newest(), 0, actual - e.cost, nil})
			require.NoError(p.t, e.res.Settle(int(actual)))
		} else if actual >= 0 {
			e.real = actual
			require.NoError(p.t, e.res.Settle(int(actual)))
		}
	case op < 19 && p.grants && p.newest() == p.now(): // otherwise the grant would take from bookings
		n := 1 + p.rng.Int64N(p.plan().capacity)
		require.NoError(p.t, p.l.Adjust(ctx, p.key, -int(n)))
		p.exact = p.exact && !p.kept[p.now()] // the script does not keep reservations of one instant apart
		p.add(&happened{p.now(), 0, -n, nil})
	case op == 19:
		n := 1 + p.rng.Int64N(p.plan().capacity)
		at := p.newest()
		require.NoError(p.t, p.l.Adjust(ctx, p.key, int(n)))
		p.add(&happened{at, 0, n, nil})
	}
}

// pass reserves a cost and gives it back, like a call denied by another limiter.
func (p *past) pass() {
	at := p.now()
	r, err := p.l.Reserve(new(optional.Passing).From(context.Background()), p.key, p.cost(), 0)
	require.NoError(p.t, err)
	if p.rng.IntN(4) == 0 {
		p.clock.Advance(time.Duration(p.rng.Int64N(5)) * time.Microsecond)
		p.exact = p.exact && at == p.now() // units regained in between stay charged
	}
	require.NoError(p.t, r.Cancel())
}

func (p *past) String() (text string) {
	for _, e := range p.events {
		text += fmt.Sprintf("at %d: %d, in truth %d\n", e.at, e.cost, e.real)
	}
	return fmt.Sprintf("%v, now %d\n%s", p.plan().limit, p.now(), text)
}

// A key with settled reservations owes as much as one charged the real costs from the beginning. It never
// owes less. It may owe more. The script drops a fraction of a microsecond from a least debt, does not
// keep apart the reservations made at a grant's instant, and merges two reservations if many are open.
func TestASettledKeyOwesTheRealCosts(t *testing.T) {
	client := startServer(t).client()
	exact, whole := 0, 0
	for seed := range uint64(testsize.Of(150, 3000)) {
		p := newPast(t, client, seed)
		p.passes = seed%2 == 0
		for range 80 {
			p.step()
			stored, replayed := p.owed()
			require.GreaterOrEqual(t, stored, replayed, "seed %d: %v", seed, p)
			if p.exact && p.plan().units == 1 {
				require.Equal(t, replayed, stored, "seed %d: %v", seed, p)
				exact++
			}
		}
		if p.plan().units == 1 {
			whole++
		}
	}
	require.Greater(t, exact, 20*whole, "most of the time nothing is rounded")
}

// After two reservations at one instant, a grant and a settlement give back the whole debt.
// A third reservation at that instant still owes its cost after the second one is settled.
func TestASettledReservationGivesBackNothingOfALaterOneOfItsInstant(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.TokenBucket(ratelimit.PerMinute(1), 100), "instant")
	reserve := func() *ratelimit.Reservation {
		r, err := l.Reserve(t.Context(), "k", 10, 0)
		require.NoError(t, err)
		return r
	}
	first, second := reserve(), reserve()
	require.NoError(t, l.Adjust(t.Context(), "k", -15))
	require.NoError(t, first.Cancel())
	require.Equal(t, 100, f.left(l, "k"))
	reserve()
	require.NoError(t, second.Cancel())
	require.Equal(t, 90, f.left(l, "k"))
}

// A charge is cut at the maximum debt. Earlier reservations then give
// nothing back, because with their real costs the debt would be as large.
func TestAReservationGivesBackNothingOfADebtThatIsCut(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.TokenBucket(ratelimit.Per(1, 8766*time.Hour), 20), "cut") // 100 units take a century
	r, err := l.Reserve(t.Context(), "k", 15, 0)
	require.NoError(t, err)
	require.NoError(t, l.Adjust(t.Context(), "k", 1000))
	before, err := l.Peek(t.Context(), "k", 0)
	require.NoError(t, err)
	require.Equal(t, 80, before.Debt)
	require.NoError(t, r.Cancel())
	after, err := l.Peek(t.Context(), "k", 0)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// On Redis a leaky bucket does not keep its queue's places apart, so it gives back only from the queue's
// end. In memory a place in the middle comes back, too, once all later places have come back. The queue
// on Redis is never shorter than in memory. If places are given back only from the end, both are equal.
func TestAQueueOnRedisIsNeverShorterThanInMemory(t *testing.T) {
	client := startServer(t).client()
	longer, equal := 0, 0
	for i, limit := range []ratelimit.Limit{ratelimit.LeakyBucket(ratelimit.PerSecond(10), 12), ratelimit.LeakyBucket(ratelimit.PerMinute(100), 40)} {
		for seed := range histories(48) {
			w := newTwin(t, client, limit, fmt.Sprintf("queue%d-%d", i, seed), uint64(seed))
			for range 80 {
				w.queueStep(seed%2 == 0)
				memory, err := w.memory.Peek(context.Background(), twinKey, 0)
				require.NoError(t, err)
				remote, err := w.remote.Peek(t.Context(), twinKey, 0)
				require.NoError(t, err)
				switch {
				case remote.ResetAfter > memory.ResetAfter && seed%2 > 0:
					longer++
				case remote.ResetAfter == memory.ResetAfter && remote.Remaining == memory.Remaining:
					equal++
				default:
					t.Fatalf("seed %d: in memory %+v, in Redis %+v after\n%s", seed, memory, remote, tail(w.log))
				}
			}
		}
	}
	require.Positive(t, longer)
	require.Positive(t, equal)
}

// queueStep makes a call allowed by both limiters. If fromTheEnd is set, it settles reservations in reverse order.
func (w *twin) queueStep(fromTheEnd bool) {
	ctx, cost := context.Background(), 1+w.rng.IntN(4)
	d, err := w.memory.Peek(context.Background(), twinKey, cost)
	require.NoError(w.t, err)
	e, err := w.remote.Peek(ctx, twinKey, cost)
	require.NoError(w.t, err)
	switch op := w.rng.IntN(8); {
	case op < 4 && d.Allowed && e.Allowed:
		w.note("Reserve(%d)", cost)
		r, err := w.memory.Reserve(ctx, twinKey, cost, time.Hour)
		require.NoError(w.t, err)
		q, err := w.remote.Reserve(ctx, twinKey, cost, time.Hour)
		require.NoError(w.t, err)
		require.True(w.t, r.Allowed && q.Allowed)
		w.open = append(w.open, openPair{r, q, cost, 0})
	case op < 7 && len(w.open) > 0:
		i := len(w.open) - 1
		if !fromTheEnd {
			i = w.rng.IntN(len(w.open))
		}
		o := w.open[i]
		w.open = slices.Delete(w.open, i, i+1)
		actual := w.rng.IntN(2) * w.rng.IntN(o.cost+1)
		w.note("settle %d at %d", o.cost, actual)
		require.NoError(w.t, o.memory.Settle(actual))
		require.NoError(w.t, o.remote.Settle(actual))
		if actual > 0 && fromTheEnd {
			w.entered() // the rest of the place stays, so the earlier place is not at the queue's end
		}
	default:
		w.clock.Advance(time.Duration(w.rng.Int64N(int64(w.limit.Rate.Per/time.Microsecond)/10)) * time.Microsecond)
	}
}

// When the limit changes from a leaky bucket to another algorithm, reservations in memory keep their
// places' instants, and later costs queue behind them. On Redis the queue counts as spent at the change.
func TestAQueueThatBecomesAnotherAlgorithmsCountsAsSpentOnRedis(t *testing.T) {
	f := newFixture(t)
	queue, bucket := ratelimit.LeakyBucket(ratelimit.PerSecond(10), 10), ratelimit.TokenBucket(ratelimit.PerSecond(10), 15)
	memory, err := ratelimit.New(queue, &ratelimit.Options[string]{Clock: f.clock})
	require.NoError(t, err)
	l := f.limiter(queue, "queue")
	for range 10 {
		r, err := memory.Reserve(t.Context(), "k", 1, time.Hour)
		require.NoError(t, err)
		q, err := l.Reserve(t.Context(), "k", 1, time.Hour)
		require.NoError(t, err)
		require.Equal(t, r.Decision, q.Decision)
	}
	require.NoError(t, memory.SetLimit(bucket))
	require.NoError(t, l.SetLimit(bucket))
	near, err := memory.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	require.False(t, near.Allowed)
	require.Equal(t, 900*time.Millisecond, near.RetryAfter, "the last place leaves")
	far, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.True(t, far.Allowed)
	require.Equal(t, 5, far.Remaining)
	require.Equal(t, near.ResetAfter, far.ResetAfter)
}
