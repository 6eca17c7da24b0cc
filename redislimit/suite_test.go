package redislimit

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// epoch is the server's clock where a test's clock reads 0: late enough that negative readings stay above 0, and early enough
// that the scripts can still read a state 130 years later. The suite begins at dates with the same property.
const epoch = int64(1_450_000_000_000_000)

// outlive keeps keys alive although a test's clock is not the server's.
const outlive = int64(time.Hour / time.Microsecond)

// onClock makes a limiter read a test's clock instead of the server's.
func onClock(l *Limiter, clock ratelimit.Clock) *Limiter {
	l.store.clock = func() int64 { return epoch + int64(clock.Now())/1000 }
	l.store.grace = outlive
	return l
}

// verdicts makes the test fail if the script's verdict differs from Go's.
func verdicts(t testing.TB) {
	compare := func(c *charge, reading int64) {
		if want := !c.offer.Denied(reading); c.allowed != want {
			t.Errorf("the script says %v, and Go %v: %+v of %v at %d", c.allowed, want, c, c.plan.limit, reading)
		}
	}
	checkVerdict.Store(&compare)
	t.Cleanup(func() { checkVerdict.Store(nil) })
}

// accepts leaves out a limit if its Per or its refill time is 40 years or more. For these the suite's
// clock goes on for centuries, beyond the scripts' 2^53 µs, or back by a Per to before the Unix epoch.
func accepts(l ratelimit.Limit) bool {
	const most = 40 * 365 * 24 * time.Hour
	_, err := newPlan(l, defaultMaxLog)
	return err == nil && l.RefillTime() < most && l.Rate.Per < most
}

// A leaky bucket with many units for each Per is soon empty, even if the Per is long.
func TestTheSuiteIsNotPlayedBeforeTheEpoch(t *testing.T) {
	limit := ratelimit.LeakyBucket(ratelimit.Per(math.MaxInt32, 90*365*24*time.Hour), 10)
	require.Less(t, limit.RefillTime(), time.Hour)
	assert.False(t, accepts(limit))
	limit.Rate.Per /= 3
	assert.True(t, accepts(limit))
}

func suiteOf(client redis.UniversalClient, clock *ratelimittest.Clock) ratelimittest.Config {
	made := 0
	return ratelimittest.Config{
		Clock:      clock,
		Resolution: time.Microsecond,
		Histories:  histories(12),
		Accepts:    accepts,
		Want:       []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit", "Calendar", "Join"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made++
			l, err := New(client, limit, &Options{Name: fmt.Sprintf("suite%d", made), Timeout: 10 * time.Second})
			if err != nil {
				return nil, err
			}
			onClock(l, clock)
			l.store.clock = func() int64 { return clock.Wall().UnixMicro() } // all limiters of a server have the same time
			return l, nil
		},
	}
}

// histories returns the number of random histories for a test that plays n at its full size.
func histories(n int) int { return testsize.Of(max(1, n/12), n) }

func TestSuite(t *testing.T) {
	verdicts(t)
	s := startServer(t)
	ratelimittest.Run(t, suiteOf(s.client(), new(ratelimittest.Clock)))
}

func TestTakeOnce(t *testing.T) {
	s := startServer(t)
	l, err := New(s.client(), ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), &Options{Name: "once", Timeout: 10 * time.Second})
	require.NoError(t, err)
	d, err := l.Take(t.Context(), "k", 5)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.Equal(t, 15, d.Remaining)
}

func TestCallsThatOverlapUseTheWholeLimit(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l, err := New(startServer(t).client(), model.TokensPerMinute, &Options{Name: "tokens", Timeout: 10 * time.Second})
	require.NoError(t, err)
	onClock(l, clock)
	assert.InDelta(t, 100_000, model.Overlap(t, clock, l, "tenant"), 5000)
	layered, err := ratelimit.All(ratelimit.By(l, func(r string) (string, error) { return r, nil }))
	require.NoError(t, err)
	clock.Advance(time.Hour)
	assert.InDelta(t, 100_000, model.Overlap(t, clock, layered, "tenant"), 5000)
}

// Three processes share a key for an hour. They use as much as callers of one limiter in memory.
func TestAnHourOfCallsOfSeveralProcessesUsesAsMuchAsInMemory(t *testing.T) {
	testsize.Sequential(t)
	clock, client := new(ratelimittest.Clock), startServer(t).client()
	var fleet []ratelimit.Reserver[string]
	for range 3 {
		l, err := New(client, model.TokensPerMinute, &Options{Name: "hour", Timeout: 10 * time.Second})
		require.NoError(t, err)
		fleet = append(fleet, onClock(l, clock))
	}
	used, over := model.Hour(t, clock, model.InTurn(fleet...), []string{"tenant"}, 0)
	require.Zero(t, over, "tokens beyond the bound")
	clock.Set(0)
	memory, err := ratelimit.New(model.TokensPerMinute, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	inMemory, _ := model.Hour(t, clock, memory, []string{"tenant"}, 0)
	assert.InEpsilon(t, inMemory, used, 0.005)
}

// A leased layer holds units for later calls. These are used up, like units given back by calls.
func TestCallsThatOverlapUseTheWholeLimitThroughALeasedLayer(t *testing.T) {
	clock, client := new(ratelimittest.Clock), startServer(t).client()
	l, err := New(client, model.TokensPerMinute, &Options{Name: "leased", Timeout: 10 * time.Second})
	require.NoError(t, err)
	wide, err := New(client, ratelimit.TokenBucket(ratelimit.PerMinute(1_000_000), 1_000_000), &Options{Name: "wide", Timeout: 10 * time.Second})
	require.NoError(t, err)
	stack, err := ratelimit.All(ratelimit.By(leased(onClock(l, clock), 4000), identity), ratelimit.By(onClock(wide, clock), identity))
	require.NoError(t, err)
	assert.InDelta(t, 100_000, model.Overlap(t, clock, stack, "tenant"), 5000)
}
