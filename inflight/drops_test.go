package inflight_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// drop runs n windows in which a share of the calls is dropped at once, under any limit.
func (l *loop) drop(n int, share float64) (limits []int) {
	for range n {
		rtt := time.Duration(float64(l.service) * max(1, float64(l.limit)/float64(l.servers)))
		good := min(float64(l.limit), float64(l.servers)) / l.service.Seconds()
		l.limit = l.alg.Update(inflight.Sample{
			RTT: rtt, Served: rtt, Ended: 50, InFlight: l.limit, Mean: float64(l.limit), Crowd: float64(l.limit), Max: 200,
			Drops: share, Dropped: share >= 0.25, Outcomes: 100, Goodput: good,
		})
		limits = append(limits, l.limit)
	}
	return limits
}

// settled returns a loop whose limit has settled.
func settled(adaptive func() inflight.Algorithm) *loop {
	l := &loop{adaptive(), 20, 20, service}
	l.drop(150, 0)
	return l
}

// A replica is dead. The limit returns to its value. From then on, only a larger share of drops counts.
func TestDropsThatALowerLimitDoesNotCureDoNotLowerIt(t *testing.T) {
	for name, adaptive := range adaptives {
		for _, share := range []float64{0.3, 0.5, 0.9} {
			l := settled(adaptive)
			before := l.limit
			low, _ := extremes(l.drop(12, share))
			assert.Less(t, low, before, "%s, %v: it is an experiment", name, share)
			l.drop(20, share)
			assert.GreaterOrEqual(t, l.limit, 20, "%s, %v", name, share)
			low, high := extremes(l.drop(200, share))
			assert.GreaterOrEqual(t, low, 8, "%s, %v: only probes lower it", name, share)
			assert.LessOrEqual(t, high, 5*before/2, "%s, %v: latency counts", name, share)
			l.drop(200, 0)
			assert.InDelta(t, before, l.limit, float64(before)/4, "%s, %v", name, share)
		}
	}
}

// A backend refuses all calls above its capacity. The limit stays near the capacity.
func TestDropsThatALowerLimitCuresLowerIt(t *testing.T) {
	for name, adaptive := range adaptives {
		l, sum := &loop{adaptive(), 20, 20, service}, 0
		for i := range 600 {
			share := max(0, 1-20/float64(l.limit))
			l.limit = l.alg.Update(inflight.Sample{
				RTT: service, Ended: 50, InFlight: l.limit, Mean: float64(l.limit), Crowd: float64(l.limit), Max: 1000,
				Drops: share, Dropped: share >= 0.25, Outcomes: 100, Goodput: min(20, float64(l.limit)) / service.Seconds(),
			})
			if i >= 100 {
				sum += l.limit
			}
		}
		assert.InDelta(t, 22, float64(sum)/500, 5, name)
	}
}

func TestAnOutageOfTheWholeBackendLowersTheLimitToMin(t *testing.T) {
	for name, adaptive := range adaptives {
		l := settled(adaptive)
		for range 100 {
			l.limit = l.alg.Update(inflight.Sample{InFlight: l.limit, Mean: 1, Drops: 1, Dropped: true, Outcomes: 20, Max: 200})
		}
		assert.Equal(t, 1, l.limit, name)
		l.drop(60, 0)
		assert.GreaterOrEqual(t, l.limit, 18, name)
	}
}

// A floor does not hide drops above it, and fades some time after the incident.
func TestAnOutageIsSeenThroughAFloorAndAFloorFades(t *testing.T) {
	for name, adaptive := range adaptives {
		for _, floor := range []float64{0.3, 0.5, 0.9} {
			l := settled(adaptive)
			l.drop(60, floor)
			for range 100 {
				l.limit = l.alg.Update(inflight.Sample{InFlight: l.limit, Mean: 1, Drops: 1, Dropped: true, Outcomes: 20, Max: 200})
			}
			assert.Equal(t, 1, l.limit, "%s: an outage after a floor of %v", name, floor)
			l.drop(400, 0)
			before := l.limit
			low, _ := extremes(l.drop(12, 0.4))
			assert.Less(t, low, before*8/10, "%s: 40 %% are many again, long after a floor of %v", name, floor)
		}
	}
}

// In windows of 20 outcomes, five drops are a quarter, and four are less. At 15 % of drops, windows with five come by chance.
func TestDropsByChanceDoNotLowerTheLimit(t *testing.T) {
	for name, adaptive := range adaptives {
		for seed := range uint64(5) {
			l, rng := settled(adaptive), rand.New(rand.NewPCG(seed, 5))
			before, low := l.limit, math.MaxInt
			for i := range 200 {
				dropped := 0
				for range 20 {
					if rng.Float64() < 0.15 {
						dropped++
					}
				}
				share := float64(dropped) / 20
				l.limit = l.alg.Update(inflight.Sample{
					RTT: service, Served: service, Ended: 17, InFlight: l.limit, Mean: float64(min(l.limit, 20)), Max: 200,
					Drops: share, Dropped: share >= 0.25, Outcomes: 20, Goodput: 170,
				})
				if i > 20 {
					low = min(low, l.limit)
				}
			}
			assert.GreaterOrEqual(t, low, min(before, 20)*6/10, "%s, seed %d: but for probes", name, seed)
		}
	}
}

// In windows of 20 outcomes, a share of 30 % now and then has few drops by chance, or very
// many. Such a window neither ends an experiment nor restarts it from the present limit.
func TestChanceDoesNotKeepTheLimitLowDuringAPartialOutage(t *testing.T) {
	for name, adaptive := range adaptives {
		for _, share := range []float64{0.25, 0.3, 0.4, 0.5, 0.7} {
			low := 0
			for seed := range uint64(100) {
				l, rng := settled(adaptive), rand.New(rand.NewPCG(seed, 6))
				for i := range 100 {
					dropped := 0.0
					for range 20 {
						if rng.Float64() < share {
							dropped++
						}
					}
					busy := float64(min(l.limit, 20))
					l.limit = l.alg.Update(inflight.Sample{
						RTT: service, Served: service, Ended: 20, InFlight: l.limit, Mean: busy, Crowd: busy, Max: 200,
						Drops: dropped / 20, Dropped: dropped >= 5, Outcomes: 20, Goodput: busy / service.Seconds() * (0.8 + 0.4*rng.Float64()),
					})
					if i >= 50 && l.limit <= 3 {
						low++
					}
				}
			}
			assert.Less(t, low, 20, "%s, %v: of 5000 windows", name, share)
		}
	}
}

// A run may begin at the least limit. Then there is no lower limit to compare.
func TestAPartialOutageDoesNotKeepALimitThatWasAtItsLeastThere(t *testing.T) {
	{
		name, adaptive := "Learn", inflight.Learn(&inflight.LearnOptions{Start: 1})
		for _, share := range []float64{0.3, 0.5, 0.9} {
			l := &loop{adaptive(), 1, 20, service}
			l.drop(60, share)
			assert.GreaterOrEqual(t, l.limit, 15, "%s, %v", name, share)
		}
	}
}

// Successes wait in a queue for longer than a window, so most of a window's successes end
// in later ones. Drops take a millisecond. Still, their share is counted among all calls.
func TestTheShareOfDropsDoesNotDependOnTheQueue(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(slices.Repeat([]int{100}, 1000)...)
	l := newLimiter(t, 100, &options{Clock: clock, Adaptive: adaptive})
	type call struct {
		ends    time.Duration
		permit  inflight.Permit
		outcome inflight.Outcome
	}
	var calls []call
	for i := range 20_000 { // one call each millisecond
		now := clock.Now()
		c := call{now + 90*time.Millisecond, take(t, l, "a", 1), inflight.Success}
		if i%10 < 3 {
			c.ends, c.outcome = now+time.Millisecond, inflight.Dropped
		}
		calls = append(calls, c)
		clock.Advance(time.Millisecond)
		calls = slices.DeleteFunc(calls, func(c call) bool {
			if c.ends > clock.Now() {
				return false
			}
			c.permit.Done(c.outcome)
			return true
		})
	}
	require.Greater(t, len(*samples), 100)
	for _, s := range (*samples)[5:] {
		assert.InDelta(t, 0.3, s.Drops, 0.05)
	}
}

// Events during an experiment have no lasting effect.
func TestEventsDuringAnExperimentDoNotLast(t *testing.T) {
	for name, adaptive := range adaptives {
		for windows := range 16 {
			l := settled(adaptive)
			before := l.limit
			l.drop(windows, 0.5) // an outage that ends during the experiment
			l.drop(150, 0)
			assert.InDelta(t, before, l.limit, float64(before)/3, "%s: over after %d windows", name, windows)

			l = settled(adaptive)
			l.drop(windows, 0.5)
			l.servers /= 2
			l.drop(150, 0.5)
			assert.GreaterOrEqual(t, l.limit, 8, "%s: half of the servers after %d windows", name, windows)

			l = settled(adaptive)
			l.drop(windows, 0.5)
			for range 40 { // the load halves
				l.limit = l.alg.Update(inflight.Sample{
					RTT: service, Served: service, Ended: 50, InFlight: min(5, l.limit), Mean: float64(min(3, l.limit)), Max: 200,
					Drops: 0.5, Dropped: true, Outcomes: 50, Goodput: 20 * float64(min(3, l.limit)),
				})
			}
			l.drop(60, 0.5)
			assert.GreaterOrEqual(t, l.limit, 16, "%s: half of the load after %d windows", name, windows)

			l = settled(adaptive)
			l.drop(windows, 0.5)
			for range 40 { // the bound is lowered
				l.limit = l.alg.Update(inflight.Sample{RTT: service, Ended: 50, InFlight: l.limit, Max: 5, Drops: 0.5, Dropped: true, Outcomes: 50, Goodput: 250})
				require.LessOrEqual(t, l.limit, 5, name)
			}
		}
	}
}

// If half the calls are always dropped, slow calls among the others still lower the limit.
func TestSlowWindowsLowerALimitWithAFloor(t *testing.T) {
	l := settled(inflight.Learn(&inflight.LearnOptions{Timeout: 4 * service}))
	l.drop(100, 0.5)
	before := l.limit
	l.service *= 10
	l.drop(10, 0.1)
	assert.Less(t, l.limit, before/4)
}

// deciding wraps an algorithm. It decides on Dropped by itself.
type deciding struct {
	inflight.Algorithm
	dropped bool
}

func (d deciding) Update(s inflight.Sample) int {
	s.Dropped = d.dropped
	return d.Algorithm.Update(s)
}

func TestAWrapperDecidesWhetherAWindowIsDropped(t *testing.T) {
	for name, adaptive := range adaptives {
		l := settled(adaptive)
		before := l.limit
		l.alg = deciding{l.alg, false}
		l.drop(20, 0.5)
		assert.GreaterOrEqual(t, l.limit, before*6/10, "%s: it clears Dropped", name)

		l = settled(adaptive)
		l.alg = deciding{l.alg, true}
		l.drop(60, 0)
		assert.Equal(t, 1, l.limit, "%s: it sets Dropped, though nothing was", name)
	}
}

// Latency above Timeout never becomes the baseline, however long it lasts.
func TestLatencyAboveTimeoutNeverBecomesTheBaseline(t *testing.T) {
	for name, adaptive := range timeouts {
		for _, after := range []int{150, 151, 155, 160, 180} { // also in the middle of a probe
			l := &loop{adaptive(), 20, 20, service}
			l.windows(after, 200)
			before := l.limit
			l.service *= 100
			_, high := extremes(l.windows(1000, 200)[40:])
			assert.Equal(t, 1, high, name)
			l.service /= 100
			l.windows(30, 200)
			assert.GreaterOrEqual(t, l.limit, before*6/10, "%s, %d", name, after)
		}
	}
}

var timeouts = map[string]func() inflight.Algorithm{
	"Learn": inflight.Learn(&inflight.LearnOptions{Timeout: 5 * service}),
}

// Hanging calls raise RTT, but not the successes' time. Without successes, RTT counts.
func TestTimeoutCountsTheTimeOfSuccesses(t *testing.T) {
	for name, adaptive := range timeouts {
		for _, test := range []struct {
			served time.Duration
			falls  bool
		}{{service, false}, {6 * service, true}, {0, true}} {
			l := settled(adaptive)
			before := l.limit
			for range 10 {
				l.limit = l.alg.Update(inflight.Sample{
					RTT: 10 * service, Served: test.served, Ended: 50, InFlight: l.limit, Mean: float64(l.limit), Max: 200, Cancelled: 0.1, Outcomes: 50,
				})
			}
			if test.falls {
				assert.Less(t, l.limit, before*6/10, "%s, successes take %v", name, test.served)
			}
		}
	}
}

// A window's sample reports the share of drops, and the successes' times apart from other work's.
func TestASampleSeparatesDropsFromSuccesses(t *testing.T) {
	for dropped, want := range map[int]bool{4: false, 5: true} {
		clock := new(ratelimittest.Clock)
		adaptive, samples := script(20, 20)
		l := newLimiter(t, 100, &options{Clock: clock, Adaptive: adaptive})
		finish(t, l, clock, dropped, 5*time.Millisecond, inflight.Dropped)
		finish(t, l, clock, 20-dropped, 100*time.Millisecond, inflight.Success)
		require.Len(t, *samples, 1)
		s := (*samples)[0]
		assert.Equal(t, fmt.Sprint(float64(dropped)/20, 20, 100*time.Millisecond, want), fmt.Sprint(s.Drops, s.Outcomes, s.Served, s.Dropped))
		assert.InDelta(t, float64(20-dropped)/0.105, s.Goodput, 1e-6)
	}
}

// After an outage of the whole backend, the limit is at its least. Then no
// lower limit can show whether a dead replica's drops depend on the limit.
func TestAPartialOutageAfterATotalOneDoesNotKeepTheLimitAtItsLeast(t *testing.T) {
	for name, adaptive := range adaptives {
		for _, share := range []float64{0.3, 0.5, 0.9} {
			l := settled(adaptive)
			for range 100 {
				l.limit = l.alg.Update(inflight.Sample{InFlight: l.limit, Mean: 1, Drops: 1, Dropped: true, Outcomes: 20, Max: 200})
			}
			require.Equal(t, 1, l.limit, name)
			l.drop(60, share)
			assert.GreaterOrEqual(t, l.limit, 15, "%s, %v", name, share)
		}
	}
}

// While the backend is down, the limit rises from its least value for a few windows now and then, and returns to it.
func TestALiftDuringATotalOutageIsRare(t *testing.T) {
	for name, adaptive := range adaptives {
		l, higher := settled(adaptive), 0
		for i := range 500 {
			share := 1.0
			if i >= 100 && i%10 == 0 {
				share = 0.8 // a call succeeds, unrelated to the limit
			}
			l.limit = l.alg.Update(inflight.Sample{RTT: service, Served: service, InFlight: l.limit, Mean: 1, Drops: share, Dropped: true, Outcomes: 20, Goodput: 100 * (1 - share), Max: 200})
			if i >= 100 && l.limit > 1 {
				higher++
			}
		}
		assert.Less(t, higher, 60, name)
	}
}

// A replica is dead for a second of every two. The limit returns as soon as the drops end.
func TestAnOutageThatComesAndGoesDoesNotKeepTheLimitLow(t *testing.T) {
	for name, adaptive := range adaptives {
		l := settled(adaptive)
		before, sum := l.limit, 0
		for range 40 {
			l.drop(10, 0.5)
			for _, n := range l.drop(10, 0) {
				sum += n
			}
		}
		assert.Greater(t, float64(sum)/400, 0.93*float64(before), name)
	}
}

// The limit was far above a cap. It climbs back only until one window is bad.
func TestAClimbEndsWhereTheDropsReturn(t *testing.T) {
	for name, adaptive := range adaptives {
		l, refused := settled(adaptive), 0
		for i := range 200 {
			share := 0.0
			if l.limit > 12 {
				share = 0.8
			}
			l.limit = l.alg.Update(inflight.Sample{
				RTT: service, Served: service, Ended: 50, InFlight: l.limit, Mean: float64(l.limit), Crowd: float64(l.limit), Max: 200,
				Drops: share, Dropped: share > 0, Outcomes: 100, Goodput: float64(min(12, l.limit)) / service.Seconds(),
			})
			if i >= 40 && share > 0 {
				refused++
			}
		}
		assert.Less(t, refused, 50, name)
		assert.LessOrEqual(t, l.limit, 15, name)
	}
}

// The clock jumps by days while much work is in flight. No sum of times overflows.
func TestSumsOfLongTimesDoNotOverflow(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(150_000, 150_000)
	l := newLimiter(t, 150_000, &options{Clock: clock, Adaptive: adaptive})
	permits := make([]inflight.Permit, 150_000)
	for i := range permits {
		var err error
		permits[i], err = l.TryAcquire("a", 1)
		require.NoError(t, err)
	}
	clock.Advance(48 * time.Hour)
	for _, p := range permits {
		p.Release()
	}
	clock.Advance(time.Second)
	finish(t, l, clock, 100, time.Second, inflight.Success)
	for _, s := range *samples {
		assert.GreaterOrEqual(t, s.RTT, time.Duration(0))
		assert.GreaterOrEqual(t, s.Served, time.Duration(0))
	}
}
