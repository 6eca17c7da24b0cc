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
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// changer is a twin whose limit changes. Its key expires in Redis as if the server's clock
// were the test's. Its limits regain so slowly that no key expires by itself during the test.
type changer struct {
	*twin
	client *redis.Client
	limits []ratelimit.Limit
	left   bool // the limit's kind has changed since the last reset
}

func slowLimits() (all []ratelimit.Limit) {
	for _, r := range []ratelimit.Rate{ratelimit.PerHour(10), ratelimit.PerHour(100), ratelimit.PerDay(4), ratelimit.Per(8, 2*time.Hour)} {
		all = append(all, ratelimit.TokenBucket(r, 7), ratelimit.TokenBucket(r, 12), ratelimit.LeakyBucket(r, 6),
			ratelimit.FixedWindow(r), ratelimit.SlidingLog(r))
	}
	for _, r := range []ratelimit.Rate{ratelimit.Per(10, 126*time.Minute), ratelimit.PerDay(4), ratelimit.Per(8, 140*time.Minute)} {
		all = append(all, ratelimit.SlidingCounter(r)) // its shares are whole microseconds, as in twinLimits
	}
	return all
}

func newChanger(t *testing.T, client *redis.Client, seed uint64) *changer {
	rng := rand.New(rand.NewPCG(testsize.Seed(seed), 7))
	limits, booking := slowLimits(), seed%2 == 1
	if booking { // a leaky bucket's booking is a place in its queue, and Redis does not keep places apart
		limits = slices.DeleteFunc(limits, func(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmLeakyBucket })
	}
	w := newTwin(t, client, limits[rng.IntN(len(limits))], fmt.Sprintf("changer%d", seed), seed)
	w.remote.store.grace = 0
	c := &changer{twin: w, client: client, limits: limits}
	w.booking = booking
	c.clock.Set(time.Since(time.UnixMicro(epoch)).Truncate(time.Second)) // so the server does not expire keys
	return c
}

// expire deletes the key once its time to live has passed on the test's clock.
func (c *changer) expire() {
	key := c.remote.space.key(twinKey)
	raw, err := c.client.GetRange(context.Background(), key, stateExpiry, stateSize-1).Bytes()
	require.NoError(c.t, err)
	if len(raw) == 4 && c.remote.store.clock() >= (int64(binary.BigEndian.Uint32(raw))+1)*1e6 {
		c.note("the key expires")
		c.open = nil // their settlements would change nothing in Redis
		require.NoError(c.t, c.client.Del(context.Background(), key).Err())
	}
}

// change sets another limit and takes, often some time after the last charge. It charges once before the change, to
// put the key under the present limit: denials have left it under an earlier one. A change rounds up to whole units
// of the clock, 1 ns in memory and 1 µs on Redis. If the two then differ by rounding, both limiters start fresh.
func (c *changer) change() {
	limit := c.limits[c.rng.IntN(len(c.limits))]
	if c.limit.Burst > 0 && c.rng.IntN(3) == 0 {
		limit = c.limit
		limit.Burst = 1 + c.rng.IntN(12)
	}
	if c.booking && c.rng.IntN(3) == 0 { // this exceeds a log's capacity
		limit = ratelimit.SlidingLog(ratelimit.PerDay(4))
		c.fill(2)
	}
	c.note("adjust by 1")
	require.NoError(c.t, c.memory.Adjust(context.Background(), twinKey, 1))
	require.NoError(c.t, c.remote.Adjust(context.Background(), twinKey, 1))
	if c.rng.IntN(2) == 0 {
		c.clock.Advance(time.Duration(c.rng.Int64N(int64(c.limit.Rate.Per/time.Microsecond))) * time.Microsecond)
		c.expire()
	}
	if !model.Alike(c.limit, limit) {
		if c.left = !c.left; !c.left { // in memory, former limits go on counting
			c.note("reset")
			c.memory.Reset(context.Background(), twinKey)
			require.NoError(c.t, c.remote.Reset(context.Background(), twinKey))
			c.open, c.left = nil, true
		}
	}
	c.note("SetLimit(%v)", limit)
	require.NoError(c.t, c.memory.SetLimit(limit))
	require.NoError(c.t, c.remote.SetLimit(limit))
	bucket := limit.Algorithm == ratelimit.AlgorithmTokenBucket // Redis does not notice a new burst if the debt is below both
	c.open = slices.DeleteFunc(c.open, func(o openPair) bool {
		return bucket && o.due <= c.clock.Now() || limit.Algorithm != c.limit.Algorithm
	})
	c.limit = limit
	d, err := c.memory.Take(context.Background(), twinKey, 1)
	require.NoError(c.t, err)
	e, err := c.remote.Take(context.Background(), twinKey, 1)
	require.NoError(c.t, err)
	if d == e {
		c.note("Take(1): %+v", d)
		return
	}
	if !near(d, e) {
		c.same("Take(1)", d, e, nil, nil)
	}
	c.note("reset")
	c.memory.Reset(context.Background(), twinKey)
	require.NoError(c.t, c.remote.Reset(context.Background(), twinKey))
}

// fill spends the capacity, and books it ahead times-1 times.
func (w *twin) fill(times int) {
	cost := w.limit.Capacity()
	for range times {
		ahead := time.Duration(0)
		if d, err := w.memory.Peek(context.Background(), twinKey, cost); err == nil && (!w.nearby || d.RetryAfter <= w.windowLeft()) {
			ahead = 1000 * time.Hour
		}
		r, err := w.memory.Reserve(context.Background(), twinKey, cost, ahead)
		q, err2 := w.remote.Reserve(context.Background(), twinKey, cost, ahead)
		w.same(fmt.Sprintf("Reserve(%d)", cost), r.Decision, q.Decision, err, err2)
		w.newest = max(w.newest, w.clock.Now()+r.Delay)
	}
}

// near reports whether two decisions differ only by rounding.
func near(memory, remote ratelimit.Decision) bool {
	within := func(a, b time.Duration) bool { return (a - b).Abs() <= 2*time.Microsecond }
	return (memory.Allowed == remote.Allowed || within(remote.RetryAfter, 0)) && memory.Remaining-remote.Remaining <= 1 &&
		within(memory.RetryAfter, remote.RetryAfter) && within(memory.Delay, remote.Delay) &&
		(memory.Allowed != remote.Allowed || within(memory.ResetAfter, remote.ResetAfter))
}

func TestRandomChangesOfLimitsAgreeWithMemory(t *testing.T) {
	client := startServer(t).client()
	end := time.Now().Add(randomDuration())
	for seed := uint64(0); time.Now().Before(end) || seed < 20; seed++ {
		c := newChanger(t, client, seed)
		for n := range 60 {
			c.expire()
			if c.rng.IntN(6) == 0 {
				c.change()
				c.pester()
			} else {
				c.step(n)
			}
			if c.rng.IntN(12) == 0 {
				c.clock.Advance(time.Duration(c.rng.Int64N(int64(30*time.Hour/time.Microsecond))) * time.Microsecond)
			}
		}
	}
}

// One process changes its limit back and forth, or two processes have different limits. The real costs stay within the bound.
func TestSettlementsAmongChangesOfLimitsPassNoMoreThanTheBound(t *testing.T) {
	testsize.Sequential(t)
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	clock.SetWall(time.UnixMicro(epoch))
	model.Flips(t, clock, testsize.Seed(1), testsize.Of(6, 100), func(name string, limit ratelimit.Limit) model.Flipped {
		l, err := New(client, limit, &Options{Name: name, Timeout: 10 * time.Second})
		require.NoError(t, err)
		return onClock(l, clock)
	})
}

// Two processes have different limits, for example while a fleet's
// share is rolled out. The key's spendings keep their instants.
func TestALogThatFlipsServesAsMuchAsTheLowerLimit(t *testing.T) {
	testsize.Sequential(t)
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	clock.SetWall(time.UnixMicro(epoch))
	var two [2]*Limiter
	for i, units := range []int{100, 150} {
		l, err := New(client, ratelimit.SlidingLog(ratelimit.PerMinute(units)), &Options{Name: "flips", Timeout: 10 * time.Second})
		require.NoError(t, err)
		two[i] = onClock(l, clock)
	}
	served := 0
	for i := range 5 * 120 {
		d, err := two[i/10%2].Take(t.Context(), "k", 1)
		require.NoError(t, err)
		if d.Allowed {
			served++
		}
		clock.Advance(500 * time.Millisecond)
	}
	require.GreaterOrEqual(t, served, 500)
	require.LessOrEqual(t, served, 750)
}

// openChanges returns a random limit of a token bucket. Open reservations are converted between these
// limits without rounding: a unit takes 2 to 16 s, and everything happens at multiples of 64 µs.
func openChanges(rng *rand.Rand) ratelimit.Limit {
	return ratelimit.TokenBucket(ratelimit.Per(1, time.Second<<(1+rng.IntN(4))), 1+rng.IntN(24))
}

// Open reservations survive each change of the limit's figures as in memory, among bookings, grants,
// debts, and units set aside and regained. At most as many are open as the script keeps apart.
func TestOpenReservationsSurviveRandomChangesAsInMemory(t *testing.T) {
	testsize.Sequential(t)
	client := startServer(t).client()
	late := 0
	for seed := range uint64(testsize.Of(60, 1500)) {
		rng := rand.New(rand.NewPCG(testsize.Seed(seed), 68))
		w := newTwin(t, client, openChanges(rng), fmt.Sprint("opens", seed), seed)
		w.remote.store.grace = time.Hour.Microseconds() * 1000
		made, changes := 0, 0
		changesAt := map[*ratelimit.Reservation]int{}
		for range 70 {
			w.clock.Advance(64 * time.Microsecond * time.Duration(1+rng.Int64N([]int64{10, 100_000, 500_000}[rng.IntN(3)])))
			switch op := rng.IntN(12); {
			case op < 4 && made < maxOpens:
				cost, ahead := 1+rng.IntN(w.limit.Burst), time.Duration(0)
				if rng.IntN(4) == 0 {
					ahead = time.Duration(rng.IntN(60)) * time.Second
				}
				r, err := w.memory.Reserve(t.Context(), twinKey, cost, ahead)
				q, err2 := w.remote.Reserve(t.Context(), twinKey, cost, ahead)
				w.same(fmt.Sprintf("Reserve(%d, %v)", cost, ahead), r.Decision, q.Decision, err, err2)
				if r.Allowed {
					w.newest = max(w.newest, w.clock.Now()+r.Delay)
					w.open = append(w.open, openPair{r, q, cost, w.clock.Now() + r.Delay})
					changesAt[r] = changes
					made++
				}
			case op < 8 && len(w.open) > 0:
				o := w.open[rng.IntN(len(w.open))]
				if changesAt[o.memory] != changes {
					late++
				}
				w.open = slices.DeleteFunc(w.open, func(p openPair) bool { return p == o })
				actual := rng.IntN(o.cost + 1 + rng.IntN(2))
				w.note("settle the one due at %v of %d at %d", o.due, o.cost, actual)
				require.NoError(t, o.memory.Settle(actual))
				require.NoError(t, o.remote.Settle(actual))
			case op < 10:
				w.note("adjust by 1")
				require.NoError(t, w.memory.Adjust(t.Context(), twinKey, 1)) // for the reason in changer.change
				require.NoError(t, w.remote.Adjust(t.Context(), twinKey, 1))
				w.limit = openChanges(rng)
				w.note("SetLimit(%v)", w.limit)
				require.NoError(t, w.memory.SetLimit(w.limit))
				require.NoError(t, w.remote.SetLimit(w.limit))
				changes++
			case op == 10:
				delta := rng.IntN(9) - 4
				if w.newest > w.clock.Now() { // a grant takes from bookings, and the script does not count these reservations
					delta = max(0, delta)
				}
				w.note("adjust by %d", delta)
				require.NoError(t, w.memory.Adjust(t.Context(), twinKey, delta))
				require.NoError(t, w.remote.Adjust(t.Context(), twinKey, delta))
			default:
				w.clock.Advance(time.Duration(rng.IntN(200)) * time.Second)
			}
			d, err := w.memory.Take(t.Context(), twinKey, 1)
			e, err2 := w.remote.Take(t.Context(), twinKey, 1)
			w.same("Take(1)", d, e, err, err2)
		}
	}
	require.Greater(t, late, 100, "settlements that followed a change")
}

// One process changes its limit, or two versions of a service have different limits.
func TestOpenReservationsSurviveAMovingLimit(t *testing.T) {
	testsize.Sequential(t)
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	clock.SetWall(time.UnixMicro(epoch))
	model.Moves(t, clock, func(name string, limit ratelimit.Limit) model.Flipped {
		l, err := New(client, limit, &Options{Name: name, Timeout: 10 * time.Second})
		require.NoError(t, err)
		return onClock(l, clock)
	})
}
