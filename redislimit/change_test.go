package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// answered is an error returned by Redis.
type answered string

func (e answered) Error() string { return string(e) }
func (answered) RedisError()     {}

func TestErrorsShowWhetherToRetry(t *testing.T) {
	down := []error{answered("LOADING Redis is loading"), answered("READONLY You can't"), answered("OOM command not allowed"),
		answered("BUSY Redis is busy"), answered("MASTERDOWN Link"), answered("CLUSTERDOWN Hash slot"), answered("TRYAGAIN Multiple"),
		answered("NOAUTH Authentication required."), answered("WRONGPASS invalid username-password pair"), answered("ERR invalid DB index"),
		answered("ERR DB index is out of range"), answered("NOPERM User a has no permissions to run the 'evalsha' command"),
		answered("ERR max number of clients reached"), answered("NOREPLICAS Not enough"), answered("MISCONF Redis is configured"),
		&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, errors.New("redis: connection pool timeout"), context.DeadlineExceeded}
	for _, cause := range down {
		err := classify(t.Context(), cause, false)
		assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
		assert.ErrorIs(t, err, cause)
		assert.NotErrorIs(t, err, ratelimit.ErrUnanswered, "%v", cause)
	}
	// A proxy's reply does not show whether the call had any effect.
	for _, cause := range []error{os.ErrDeadlineExceeded, net.ErrClosed, answered("upstream failure"), answered("ERR Connection timed out"),
		answered("ERR no available server"), answered("ERR Proxy error")} {
		err := classify(t.Context(), cause, true)
		assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
		assert.ErrorIs(t, err, ratelimit.ErrUnanswered)
	}
	for _, cause := range []error{answered("WRONGTYPE Operation"), answered("ERR user_script:7: attempt to"), answered("CROSSSLOT Keys in")} {
		err := classify(t.Context(), cause, true)
		assert.NotErrorIs(t, err, ratelimit.ErrUnavailable, "%v is a mistake", cause)
		assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
		assert.ErrorIs(t, err, cause)
	}
	old := answered("ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'") // as Redis 6.0.16 replies
	assert.ErrorContains(t, classify(t.Context(), old, true), "Redis 7.0 or later")
	assert.NotErrorIs(t, classify(t.Context(), old, true), ratelimit.ErrUnavailable)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := classify(ended, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, false)
	assert.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
}

func TestAPasswordThatIsMissingIsAnOutage(t *testing.T) {
	s := startServer(t)
	l := defaultsFor(t, s)
	require.True(t, l.Allow("k", 1))
	require.NoError(t, s.client().ConfigSet(t.Context(), "requirepass", "secret").Err())
	_, err := defaultsFor(t, s).Take(t.Context(), "k", 1)
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
	assert.ErrorContains(t, err, "NOAUTH")
	assert.ErrorContains(t, err, "check Username and Password of the client")
}

// TestSetLimitKeepsTheSpending changes each limit to each other one and back.
func TestSetLimitKeepsTheSpending(t *testing.T) {
	f := newFixture(t)
	wide := []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerMinute(20), 40),
		ratelimit.LeakyBucket(ratelimit.Per(7, 3*time.Second), 40),
		ratelimit.FixedWindow(ratelimit.PerMinute(40)),
		ratelimit.SlidingLog(ratelimit.PerHour(40)),
		ratelimit.SlidingCounter(ratelimit.PerHour(40)),
	}
	for i, from := range wide {
		for j, to := range wide {
			t.Run(fmt.Sprintf("%v to %v", from, to), func(t *testing.T) {
				l := f.limiter(from, fmt.Sprintf("change%d-%d", i, j))
				require.True(t, l.Allow("k", 13))
				require.NoError(t, l.SetLimit(to))
				assert.Equal(t, 27, f.left(l, "k"))
				require.NoError(t, l.SetLimit(from))
				assert.Equal(t, 27, f.left(l, "k"), "a Peek has changed nothing")
				require.NoError(t, l.SetLimit(to))
				require.True(t, l.Allow("k", 7))
				assert.Equal(t, 20, f.left(l, "k"))
				require.NoError(t, l.SetLimit(from))
				require.True(t, l.Allow("k", 1))
				assert.Equal(t, 19, f.left(l, "k"))
			})
		}
	}
}

// TestAGrantTakesBookingsFirstAndUnitsSetAsideLast checks Redis and memory: of a
// grant of 20, bookings take 5, the counted units 10, and the units set aside 5.
func TestAGrantTakesBookingsFirstAndUnitsSetAsideLast(t *testing.T) {
	f := newFixture(t)
	wide, narrow := ratelimit.FixedWindow(ratelimit.PerHour(100)), ratelimit.FixedWindow(ratelimit.PerHour(10))
	remote := f.limiter(wide, "grant")
	memory, err := ratelimit.New(wide, &ratelimit.Options[string]{Clock: f.clock})
	require.NoError(t, err)
	for name, l := range map[string]ratelimit.Reserver[string]{"Redis": remote, "memory": memory} {
		setLimit := l.(interface{ SetLimit(ratelimit.Limit) error }).SetLimit
		require.True(t, l.Allow("k", 80), name)
		require.NoError(t, setLimit(narrow))
		r, err := l.Reserve(t.Context(), "k", 5, 2*time.Hour)
		require.NoError(t, err)
		require.Positive(t, r.Delay, name)
		require.NoError(t, ratelimit.Adjust(t.Context(), l, "k", -20))
		require.NoError(t, setLimit(wide))
		d, err := ratelimit.Peek(t.Context(), l, "k", 1)
		require.NoError(t, err)
		assert.Equal(t, 35, d.Remaining, name)
	}
}

func TestAShorterWindowLeavesNoMore(t *testing.T) {
	f := newFixture(t)
	for i, age := range []time.Duration{0, 20 * time.Second, 50 * time.Second, 65 * time.Second, 80 * time.Second, 110 * time.Second} {
		l := f.limiter(ratelimit.SlidingCounter(ratelimit.PerMinute(100)), fmt.Sprintf("shorter%d", i))
		require.True(t, l.Allow("k", 100))
		f.clock.Advance(age)
		before := f.left(l, "k")
		require.NoError(t, l.SetLimit(ratelimit.SlidingCounter(ratelimit.Per(100, 7*time.Second))))
		assert.LessOrEqual(t, f.left(l, "k"), before, "after %v", age)
		require.NoError(t, l.SetLimit(ratelimit.SlidingCounter(ratelimit.Per(100, 7*time.Minute))))
		assert.LessOrEqual(t, f.left(l, "k"), before, "longer, after %v", age)
	}
}

// TestTwoVersionsOfALimitShareABudget makes two nodes of a rollout take in turn.
func TestTwoVersionsOfALimitShareABudget(t *testing.T) {
	f := newFixture(t)
	for i, limits := range [][2]ratelimit.Limit{
		{ratelimit.TokenBucket(ratelimit.PerSecond(3), 50), ratelimit.TokenBucket(ratelimit.Per(7, 2*time.Second), 40)},
		{ratelimit.FixedWindow(ratelimit.PerMinute(50)), ratelimit.FixedWindow(ratelimit.PerMinute(40))},
		{ratelimit.SlidingLog(ratelimit.PerMinute(50)), ratelimit.SlidingLog(ratelimit.PerMinute(40))},
		{ratelimit.SlidingCounter(ratelimit.PerMinute(50)), ratelimit.SlidingCounter(ratelimit.PerMinute(40))},
		{ratelimit.TokenBucket(ratelimit.PerMinute(50), 50), ratelimit.SlidingLog(ratelimit.PerMinute(40))},
	} {
		name := fmt.Sprintf("rollout%d", i)
		old, next := f.limiter(limits[0], name), f.limiter(limits[1], name)
		spent := 0
		for range 200 {
			if old.Allow("k", 1) {
				spent++
			}
			if next.Allow("k", 1) {
				spent++
			}
		}
		assert.LessOrEqual(t, spent, 50, "%v", limits)
		assert.GreaterOrEqual(t, spent, 25, "%v: conversions round against the caller", limits)
	}
}

func TestFiguresThatChangedBeforeSettling(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		l := f.limiter(limit, "before"+limit.Name)
		r, err := l.Reserve(t.Context(), "k", 8, 0)
		require.NoError(t, err)
		next := limit
		next.Rate.Units = 20
		if next.Burst > 0 {
			next.Burst = 20
		}
		require.NoError(t, l.SetLimit(next))
		require.True(t, l.Allow("k", 1))
		require.NoError(t, r.Settle(2))
		got := f.left(l, "k")
		if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			assert.Equal(t, 11, got, "%v: how much of it has left the queue is not known", limit)
		} else {
			assert.Equal(t, 17, got, "%v", limit)
		}
		r, err = l.Reserve(t.Context(), "k", 1, time.Hour)
		require.NoError(t, err)
		require.NoError(t, l.SetLimit(limit))
		require.NoError(t, r.Settle(3))
		assert.Equal(t, max(0, got-13), f.left(l, "k"), "%v: what it has cost beyond its estimate is charged", limit)
	}
}

// TestWorkersThatOverestimateWasteNothing makes 5 workers book ahead, one after the other. Each books 400
// units of a limit of 1 000 a second, and settles at 100 when its job is done. They do 10 jobs a second.
func TestWorkersThatOverestimateWasteNothing(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), ratelimit.FixedWindow(ratelimit.PerSecond(1000)),
		ratelimit.SlidingLog(ratelimit.PerSecond(1000)), ratelimit.SlidingCounter(ratelimit.PerSecond(1000))} {
		f := newFixture(t)
		memory, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: f.clock})
		require.NoError(t, err)
		inMemory := jobs(t, f.clock, memory)
		f.clock.Set(0)
		inRedis := jobs(t, f.clock, f.limiter(limit, "workers"))
		assert.InDelta(t, inMemory, inRedis, float64(inMemory)/50, "%v", limit)
		t.Logf("%v: %d jobs in 20 s, in memory %d", limit, inRedis, inMemory)
	}
}

// jobs runs the workers for 20 s of the clock and counts the finished jobs. A job takes 50 ms from its booked instant.
func jobs(t *testing.T, clock *ratelimittest.Clock, l ratelimit.Reserver[string]) (done int) {
	type worker struct {
		r    *ratelimit.Reservation
		ends time.Duration
	}
	var workers [5]worker
	for clock.Now() < 20*time.Second {
		for i := range workers {
			w := &workers[i]
			if w.r != nil && w.ends <= clock.Now() {
				require.NoError(t, w.r.Settle(100))
				done++
				w.r = nil
			}
			if w.r == nil {
				r, err := l.Reserve(context.Background(), "k", 400, time.Minute)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				w.r, w.ends = r, clock.Now()+r.Delay+50*time.Millisecond
			}
		}
		clock.Advance(5 * time.Millisecond)
	}
	return done
}

// TestManyBookingsStayWithinTheBound makes more bookings than the script keeps apart,
// settles them in any order, and checks every admission against a token bucket's bound.
func TestManyBookingsStayWithinTheBound(t *testing.T) {
	f := newFixture(t)
	for seed := range 4 {
		rng := rand.New(rand.NewPCG(testsize.Seed(uint64(seed)), 9))
		l := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(100), 20), fmt.Sprint("many", seed))
		judge := &boundJudge{rate: 100, burst: 20}
		var open []judged
		for range 600 {
			cost := 1 + rng.IntN(8)
			r, err := l.Reserve(t.Context(), "k", cost, time.Hour)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			open = append(open, judged{r, judge.admit(f.clock.Now()+r.Delay, cost)})
			for len(open) > 250 || len(open) > 0 && rng.IntN(3) == 0 {
				i := rng.IntN(len(open))
				actual := rng.IntN(9)
				require.NoError(t, open[i].r.Settle(actual))
				// The excess over the estimate is a debt. The bound does not apply to it.
				open[i].spending.cost = min(open[i].spending.cost, actual)
				open = append(open[:i], open[i+1:]...)
			}
			f.clock.Advance(time.Duration(rng.IntN(40)) * time.Millisecond)
		}
		judge.check(t)
	}
}

type judged struct {
	r        *ratelimit.Reservation
	spending *judgedSpending
}

// boundJudge judges by the spendings and their times alone.
type boundJudge struct {
	rate, burst int
	all         []*judgedSpending
}

type judgedSpending struct {
	at   time.Duration
	cost int
}

func (j *boundJudge) admit(at time.Duration, cost int) *judgedSpending {
	s := &judgedSpending{at, cost}
	j.all = append(j.all, s)
	return s
}

func (j *boundJudge) check(t *testing.T) {
	slices.SortStableFunc(j.all, func(a, b *judgedSpending) int { return cmp.Compare(a.at, b.at) })
	for from, first := range j.all {
		sum := 0
		for _, s := range j.all[from:] {
			sum += s.cost
			most := time.Duration(j.burst)*time.Second + time.Duration(j.rate)*(s.at-first.at)
			if time.Duration(sum)*time.Second > most {
				t.Fatalf("%d were spent between %v and %v", sum, first.at, s.at)
			}
		}
	}
}

// If a layer's own cost for a request is 0, the layer only peeks
// at its key, even if the stored limit makes the key fresh sooner.
func TestACostOfNothingUnderASlowerLimit(t *testing.T) {
	f := newFixture(t)
	for i, stored := range fiveLimits() {
		for j, slower := range fiveLimits() {
			slower.Rate.Per *= 100_000
			l := f.limiter(stored, fmt.Sprint("nothing", i, "-", j))
			require.True(t, l.Allow("k", 2))
			layered, err := ratelimit.All(model.WithCost(model.WithLimit(ratelimit.By(l, identity), func(string) ratelimit.Limit { return slower }), func(string) int { return 0 }))
			require.NoError(t, err)
			d, err := layered.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			r, err := layered.Reserve(t.Context(), "k", 1, time.Second)
			require.NoError(t, err)
			require.NoError(t, r.Settle(3))
			assert.Equal(t, stored.Capacity()-2, f.left(l, "k"))
		}
	}
}

// After a change from a calendar, a key's state may still be the calendar's. So
// calls send the dates of its windows with each key, and do not share a round trip.
func TestManyNewKeysAfterAChangeFromACalendar(t *testing.T) {
	l, err := New(startServer(t).client(), ratelimit.Calendar(10, ratelimit.Day("UTC")), &Options{Name: "former", Timeout: 10 * time.Second})
	require.NoError(t, err)
	for name, limit := range map[string]ratelimit.Limit{
		"bucket": ratelimit.TokenBucket(ratelimit.PerHour(50), 20), "window": ratelimit.FixedWindow(ratelimit.PerHour(20)),
	} {
		require.NoError(t, l.SetLimit(limit))
		var callers sync.WaitGroup
		for i := range 300 {
			callers.Go(func() { assert.True(t, l.Allow(fmt.Sprint(name, i), 1)) })
		}
		callers.Wait()
		for i := range 300 {
			d, err := l.Peek(t.Context(), fmt.Sprint(name, i), 1)
			require.NoError(t, err)
			require.Equal(t, 19, d.Remaining)
		}
	}
}

func TestEachAgreesWithPeekOfAQueue(t *testing.T) {
	l, err := New(startServer(t).client(), ratelimit.LeakyBucket(ratelimit.PerHour(1), 10), &Options{Name: "queue", Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.True(t, l.Allow("k", 3))
	assert.True(t, visited(t, l)["k"].Allowed, "it may enter, and waits there")
}
