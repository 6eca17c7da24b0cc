package inflight_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/ratelimittest"
)

const service = 100 * time.Millisecond

var adaptives = map[string]func() inflight.Algorithm{
	"Learn":              inflight.Learn(nil),
	"Learn with Timeout": inflight.Learn(&inflight.LearnOptions{Timeout: 20 * service}),
}

// loop is a backend with a constant service time. Its callers use the whole limit.
type loop struct {
	alg     inflight.Algorithm
	limit   int
	servers int
	service time.Duration
}

// windows runs n windows, and returns the limit after each.
func (l *loop) windows(n, most int) (limits []int) {
	for range n {
		queued := max(1, float64(l.limit)/float64(l.servers))
		rtt := time.Duration(float64(l.service) * queued)
		l.limit = l.alg.Update(inflight.Sample{RTT: rtt, InFlight: l.limit, Max: most})
		limits = append(limits, l.limit)
	}
	return limits
}

func extremes(limits []int) (low, high int) {
	low, high = math.MaxInt, 0
	for _, l := range limits {
		low, high = min(low, l), max(high, l)
	}
	return low, high
}

func TestLimitStaysOnASaturatedBackend(t *testing.T) {
	for name, adaptive := range adaptives {
		for _, servers := range []int{5, 20, 100, 1000} {
			l := &loop{adaptive(), 20, servers, service}
			l.windows(150, 10_000)
			low, high := extremes(l.windows(700, 10_000))
			middle := float64(low+high) / 2
			assert.LessOrEqual(t, float64(high), 1.1*middle+1, "%s, %d servers: %d to %d", name, servers, low, high)
			assert.GreaterOrEqual(t, low, servers*9/10, "%s, %d servers: the backend has enough to do", name, servers)
			assert.LessOrEqual(t, high, servers*5/2+10, "%s, %d servers: the queue is short", name, servers)
		}
	}
}

func TestLimitGrowsToItsBoundBelowSaturation(t *testing.T) {
	for name, adaptive := range adaptives {
		l := &loop{adaptive(), 20, 1000, service}
		last := 20
		for i, limit := range l.windows(100, 300) {
			require.GreaterOrEqual(t, limit, last, "%s shrinks in window %d", name, i)
			last = limit
		}
		assert.Equal(t, 300, last, name)
	}
}

func TestLimitRecoversFromLatencyThatWasTenfold(t *testing.T) {
	for name, adaptive := range adaptives {
		l := &loop{adaptive(), 20, 20, service}
		limits := l.windows(150, 200)
		before := limits[len(limits)-1]
		l.service *= 10
		l.windows(300, 200)
		l.service /= 10
		limits = l.windows(30, 200)
		assert.GreaterOrEqual(t, limits[len(limits)-1], before*8/10, name)
		limits = l.windows(100, 200)
		assert.InDelta(t, before, limits[len(limits)-1], float64(before)/4, name)
	}
}

func TestLimitDoesNotGrowWhileCallersAreTheBound(t *testing.T) {
	for name, adaptive := range adaptives {
		alg := adaptive()
		for range 50 {
			assert.Equal(t, 20, alg.Update(inflight.Sample{RTT: service, InFlight: 9}), name)
		}
		assert.Greater(t, alg.Update(inflight.Sample{RTT: service, InFlight: 10}), 20, name)
	}
}

func TestDroppedWindowsLowerTheLimit(t *testing.T) {
	for name, adaptive := range adaptives {
		alg := adaptive()
		assert.Equal(t, 18, alg.Update(inflight.Sample{Dropped: true, InFlight: 20}), name)
		for range 100 {
			alg.Update(inflight.Sample{Dropped: true, InFlight: 20})
		}
		assert.Equal(t, 1, alg.Update(inflight.Sample{Dropped: true}), "%s, down to Min", name)
	}
}

func TestTimeoutCountsAsDropped(t *testing.T) {
	alg := inflight.Learn(&inflight.LearnOptions{Timeout: time.Second})()
	assert.Equal(t, 18, alg.Update(inflight.Sample{RTT: time.Second + 1, InFlight: 20}))
	assert.Greater(t, alg.Update(inflight.Sample{RTT: time.Second, InFlight: 20}), 18)
}

func TestLimitStaysWithinItsBounds(t *testing.T) {
	for seed := range uint64(3) {
		alg := inflight.Learn(&inflight.LearnOptions{Min: 15, Start: 18})()
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 1000 {
			limit := alg.Update(inflight.Sample{
				RTT: time.Duration(rng.ExpFloat64() * float64(service)), InFlight: rng.IntN(50), Dropped: rng.IntN(5) == 0, Max: 24,
			})
			require.True(t, 15 <= limit && limit <= 24, limit)
		}
		assert.Equal(t, 3, alg.Update(inflight.Sample{RTT: service, InFlight: 20, Max: 3}), "the key's bound is stronger than Min")
	}
}

// Senseless figures in a sample do not move a limit out of its bounds, and the limit recovers from them.
func TestSenselessSamplesDoNoHarm(t *testing.T) {
	figures := []float64{0, 0.3, 1, 2, -1, 1e-300, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64}
	times := []time.Duration{0, 1, -1, service, 1000 * service, math.MaxInt64, math.MinInt64}
	counts := []int{0, 1, -1, 20, 1000, math.MaxInt, math.MinInt}
	for name, adaptive := range adaptives {
		for seed := range uint64(20) {
			l, rng := settled(adaptive), rand.New(rand.NewPCG(seed, 7))
			figure := func() float64 { return figures[rng.IntN(len(figures))] }
			lasts := func() time.Duration { return times[rng.IntN(len(times))] }
			count := func() int { return counts[rng.IntN(len(counts))] }
			for range 300 {
				s := inflight.Sample{
					RTT: lasts(), Deviation: lasts(), Ended: count(), InFlight: count(), Mean: figure(), Crowd: figure(), Cancelled: figure(),
					Dropped: rng.IntN(2) == 0, Drops: figure(), Outcomes: count(), Goodput: figure(), Served: lasts(), Max: 200,
				}
				l.limit = l.alg.Update(s)
				require.True(t, 1 <= l.limit && l.limit <= 200, "%s: %d after %+v", name, l.limit, s)
			}
			l.drop(3100, 0)
			assert.Greater(t, l.limit, 15, "%s, seed %d finds back", name, seed)
		}
	}
}

// Options at their ranges' ends are either rejected, or give limits within bounds.
func TestOptionsAtTheirEnds(t *testing.T) {
	ints := []int{0, 1, -1, math.MaxInt, math.MinInt}
	times := []time.Duration{0, 1, -1, math.MaxInt64, math.MinInt64}
	for _, a := range ints {
		for _, b := range ints {
			for _, d := range times {
				for _, f := range []float64{0, 1, math.NaN(), math.Inf(1), -1, 1000} {
					{
						name, adaptive := "Learn", inflight.Learn(&inflight.LearnOptions{Min: b, Start: a, Timeout: d, Tolerance: f})
						l, err := inflight.New(1000, &inflight.Options[int]{Adaptive: adaptive})
						if err != nil {
							continue
						}
						p, err := l.TryAcquire(1, 1)
						require.NoError(t, err, "%s %d %d %v %v", name, a, b, d, f)
						p.Done(inflight.Success)
						s, _ := l.Stats(1)
						require.True(t, s.Limit >= 1 && s.Limit <= 1000, "%s %d %d %v %v: %d", name, a, b, d, f, s.Limit)
						alg := adaptive()
						for range 20 {
							n := alg.Update(inflight.Sample{RTT: time.Second, Served: time.Second, InFlight: 1000, Mean: 1000, Outcomes: 20, Goodput: 20, Max: 1000})
							require.True(t, n >= 1 && n <= 1000, "%s %d %d %v %v: %d", name, a, b, d, f, n)
						}
					}
				}
			}
		}
	}
}

func TestSameSamplesGiveTheSameLimits(t *testing.T) {
	for name, adaptive := range adaptives {
		a, b := &loop{adaptive(), 20, 20, service}, &loop{adaptive(), 20, 20, service}
		assert.Equal(t, a.windows(300, 100), b.windows(300, 100), name)
	}
}

func TestBadOptionsOfAlgorithmsAreNamed(t *testing.T) {
	for text, adaptive := range map[string]func() inflight.Algorithm{
		"LearnOptions.Start is -5, want 0 for the default, or more":          inflight.Learn(&inflight.LearnOptions{Start: -5}),
		"LearnOptions.Tolerance is 0.9, want 0 for the default or 1 to 1000": inflight.Learn(&inflight.LearnOptions{Tolerance: 0.9}),
		"LearnOptions.Tolerance is NaN":                                      inflight.Learn(&inflight.LearnOptions{Tolerance: math.NaN()}),
		"LearnOptions.Tolerance is +Inf":                                     inflight.Learn(&inflight.LearnOptions{Tolerance: math.Inf(1)}),
		"LearnOptions.Min is -2, want 0 for the default, or more":            inflight.Learn(&inflight.LearnOptions{Min: -2}),
		"LearnOptions.Timeout is -1s, want 0 for none, or more":              inflight.Learn(&inflight.LearnOptions{Timeout: -time.Second}),
	} {
		_, err := inflight.New(10, &options{Adaptive: adaptive})
		assert.ErrorContains(t, err, "inflight: "+text)
	}
	for name, adaptive := range map[string]func() inflight.Algorithm{
		"the least":    inflight.Learn(&inflight.LearnOptions{Tolerance: 1, Min: 1, Start: 1}),
		"the most":     inflight.Learn(&inflight.LearnOptions{Tolerance: 1000}),
		"a nanosecond": inflight.Learn(&inflight.LearnOptions{Timeout: 1}),
	} {
		_, err := inflight.New(10, &options{Adaptive: adaptive})
		assert.NoError(t, err, name)
	}
}

// A caller may reuse its struct: later changes do not affect the Adaptive.
func TestOptionsAreCopiedAndZeroMeansTheDefaults(t *testing.T) {
	o := &inflight.LearnOptions{Start: 30}
	adaptive := inflight.Learn(o)
	o.Start = 40
	assert.Equal(t, 30, adaptive().(interface{ Limit() int }).Limit())
	defaults := inflight.Learn(&inflight.LearnOptions{Min: 1, Start: 20, Tolerance: 1.5})()
	assert.Equal(t, defaults, inflight.Learn(nil)())
	assert.Equal(t, defaults, inflight.Learn(new(inflight.LearnOptions))())
}

// scripted is an algorithm that returns given limits and records its samples.
type scripted struct {
	limits  []int
	samples *[]inflight.Sample
	start   int
}

func (s *scripted) Limit() int { return s.start }

func (s *scripted) Update(sample inflight.Sample) int {
	*s.samples = append(*s.samples, sample)
	limit := s.limits[0]
	s.limits = s.limits[1:]
	return limit
}

// script returns an Adaptive whose algorithm returns these limits in turn, and the samples that it receives.
func script(limits ...int) (func() inflight.Algorithm, *[]inflight.Sample) {
	samples := new([]inflight.Sample)
	return func() inflight.Algorithm { return &scripted{limits[1:], samples, limits[0]} }, samples
}

// finish lets n pieces of work end after d. All are in flight at once.
func finish(t *testing.T, l *inflight.Limiter[string], clock *ratelimittest.Clock, n int, after time.Duration, o inflight.Outcome) {
	var permits []inflight.Permit
	for range n {
		permits = append(permits, take(t, l, "a", 1))
	}
	clock.Advance(after)
	for _, p := range permits {
		p.Done(o)
	}
}

func TestWindowIsOverAfterTwentyOutcomesAndATenthOfASecond(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(50, 40, 30)
	l := newLimiter(t, 100, &options{Adaptive: adaptive, Clock: clock})
	finish(t, l, clock, 1, time.Second, inflight.Ignored)
	assert.Equal(t, 50, stats(t, l, "a").Limit)
	finish(t, l, clock, 30, 10*time.Millisecond, inflight.Success)
	assert.Empty(t, *samples, "enough outcomes, not enough time")
	finish(t, l, clock, 10, 100*time.Millisecond, inflight.Ignored)
	assert.Empty(t, *samples, "the time is up, but what is ignored does not tell")
	finish(t, l, clock, 1, 70*time.Millisecond, inflight.Success)
	require.Len(t, *samples, 1)
	assert.Equal(t, inflight.Sample{RTT: 11935484, Deviation: 10601081, Ended: 31, InFlight: 30, Mean: 2370. / 1180, Crowd: (1000 + 30*30*10 + 10*10*100 + 70) / 2370., Outcomes: 31, Goodput: 31 / (1180 * time.Millisecond).Seconds(), Served: 11935483, Max: 100, At: 1180 * time.Millisecond, Median: 10 * time.Millisecond}, (*samples)[0], "of 31: 30 for 10 ms, 1 for 70 ms; in flight from the first one on: 1 × 1 s, 30 × 10 ms, 10 × 100 ms, 1 × 70 ms")
	assert.Equal(t, 40, stats(t, l, "a").Limit)

	finish(t, l, clock, 19, 200*time.Millisecond, inflight.Dropped)
	assert.Len(t, *samples, 1, "time enough, and an outcome too few")
	finish(t, l, clock, 1, time.Millisecond, inflight.Dropped)
	require.Len(t, *samples, 2)
	assert.Equal(t, inflight.Sample{RTT: 200 * time.Millisecond, InFlight: 19, Mean: (19*200 + 1) / 201., Crowd: (19*19*200 + 1) / (19*200 + 1.), Cancelled: 0.95, Dropped: true, Drops: 1, Outcomes: 20, Max: 100, At: 1381 * time.Millisecond}, (*samples)[1], "19 deadlines after more than all that had succeeded")
}

func TestAFourthOfAWindowsOutcomesShowsThatCallsAreDropped(t *testing.T) {
	for dropped, want := range map[int]bool{5: true, 4: false} {
		adaptive, samples := script(50, 40)
		clock := new(ratelimittest.Clock)
		l := newLimiter(t, 100, &options{Adaptive: adaptive, Clock: clock})
		finish(t, l, clock, 20-dropped, 10*time.Millisecond, inflight.Success)
		finish(t, l, clock, dropped, 100*time.Millisecond, inflight.Dropped)
		require.Len(t, *samples, 1)
		assert.Equal(t, want, (*samples)[0].Dropped, "%d of 20", dropped)
	}
}

func TestAdaptiveLimitThatGrowsLetsWaitersIn(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, _ := script(1, 1000)
	l := newLimiter(t, 3, &options{Adaptive: adaptive, Clock: clock})
	for range 20 {
		finish(t, l, clock, 1, 6*time.Millisecond, inflight.Success)
	}
	assert.Equal(t, inflight.Stats{Limit: 3, Bound: 3, Weight: 1}, stats(t, l, "a"), "what an algorithm says above the bound is the bound")
	take(t, l, "a", 3)
}

func TestRequestAboveALimitThatIsLowForNowGoesAlone(t *testing.T) {
	adaptive, _ := script(2)
	l := newLimiter(t, 5, &options{Adaptive: adaptive})
	one := take(t, l, "a", 1)
	refused(t, l, "a", 5)
	one.Release()
	five := take(t, l, "a", 5)
	refused(t, l, "a", 1)
	five.Release()
	_, err := l.TryAcquire("a", 6)
	assert.ErrorContains(t, err, "6 is above the key's limit of 5")
}

func TestBoundOfAnAdaptiveLimitChanges(t *testing.T) {
	adaptive, _ := script(7)
	l := newLimiter(t, 10, &options{Adaptive: adaptive})
	take(t, l, "a", 1).Release()
	require.NoError(t, l.SetLimit(5))
	assert.Equal(t, 5, stats(t, l, "a").Limit)
	require.NoError(t, l.SetLimit(20))
	assert.Equal(t, 7, stats(t, l, "a").Limit, "what was learnt is not lost")
}

func TestAlgorithmThatPanicsKeepsTheLimit(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(5) // the algorithm has no more limits, so it panics
	l := newLimiter(t, 10, &options{Adaptive: adaptive, Clock: clock})
	finish(t, l, clock, 5, time.Second, inflight.Success)
	for range 2 {
		assert.Panics(t, func() {
			for range 20 {
				finish(t, l, clock, 1, time.Second, inflight.Success)
			}
		})
	}
	assert.Len(t, *samples, 2, "and it is asked again")
	assert.Equal(t, 5, stats(t, l, "a").Limit)
	assert.LessOrEqual(t, stats(t, l, "a").InFlight, 0)
}

func TestEachKeyLearnsForItself(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newLimiter(t, 100, &options{Adaptive: inflight.Learn(nil), Clock: clock})
	for range 5 {
		finish(t, l, clock, 10, time.Second, inflight.Dropped)
	}
	take(t, l, "b", 1).Release()
	assert.Less(t, stats(t, l, "a").Limit, 20)
	assert.Equal(t, 20, stats(t, l, "b").Limit, "one slow key does not hold up another")
	assert.Equal(t, 100, stats(t, l, "b").Bound)
}

func TestAdaptiveLimiterUnderLoad(t *testing.T) {
	l := newLimiter(t, 50, &options{Adaptive: inflight.Learn(nil), MaxQueue: 100, Total: 30})
	inParallel(16, func(i int) {
		for j := range 300 {
			p, err := l.Acquire(t.Context(), string(rune('a'+i%3)), 1+j%2)
			require.NoError(t, err)
			p.Done(inflight.Outcome(j % 4))
		}
	})
	for _, s := range l.Snapshot() {
		assert.Zero(t, s.InFlight+s.Queued)
	}
}

// Work begun before a window ran under another limit, so the window ignores its time.
func TestWindowLearnsOnlyFromWorkThatBeganWithinIt(t *testing.T) {
	clock := new(ratelimittest.Clock)
	adaptive, samples := script(50, 50, 50)
	l := newLimiter(t, 100, &options{Adaptive: adaptive, Clock: clock})
	var old []inflight.Permit
	for range 10 {
		old = append(old, take(t, l, "a", 1))
	}
	clock.Advance(time.Second)
	finish(t, l, clock, 20, 10*time.Millisecond, inflight.Success)
	for len(*samples) == 0 {
		finish(t, l, clock, 20, 100*time.Millisecond, inflight.Success)
	}
	for _, p := range old {
		p.Done(inflight.Dropped)
	}
	finish(t, l, clock, 20, 100*time.Millisecond, inflight.Success)
	require.Len(t, *samples, 2)
	assert.Equal(t, inflight.Sample{RTT: 100 * time.Millisecond, Ended: 39, InFlight: 30, Mean: 20, Crowd: 20, Outcomes: 39, Goodput: 390, Served: 100 * time.Millisecond, Max: 100, At: 1810 * time.Millisecond}, (*samples)[1], "19 ended in this window that began in the one before: of these it has seen how long they take, and that they were not dropped")
}

// Work cancelled or still in flight counts with at least its time so far.
func TestCancelledWorkAndWorkUnderWayRaiseTheMean(t *testing.T) {
	for _, row := range []struct {
		name      string
		cancelled time.Duration // the time of five cancelled calls; 0 if there are none
		underWay  bool          // whether five calls begun with the others are still in flight
		most      time.Duration
	}{
		{"neither", 0, false, 100 * time.Millisecond},
		{"cancelled early", time.Millisecond, false, 100 * time.Millisecond},
		{"cancelled late", 190 * time.Millisecond, false, 130 * time.Millisecond},
		{"under way", 0, true, 220 * time.Millisecond},
	} {
		clock := new(ratelimittest.Clock)
		adaptive, samples := script(50, 50, 50)
		l := newLimiter(t, 100, &options{Adaptive: adaptive, Clock: clock})
		var good, late []inflight.Permit
		for range 20 {
			good = append(good, take(t, l, "a", 1))
		}
		if row.cancelled > 0 || row.underWay {
			for range 5 {
				late = append(late, take(t, l, "a", 1))
			}
		}
		end := func(ps []inflight.Permit, at time.Duration, o inflight.Outcome) {
			clock.Set(at)
			for _, p := range ps {
				p.Done(o)
			}
		}
		if 0 < row.cancelled && row.cancelled < 100*time.Millisecond {
			end(late, row.cancelled, inflight.Cancelled)
		}
		end(good[:19], 100*time.Millisecond, inflight.Success)

		if row.cancelled > 100*time.Millisecond {
			clock.Set(row.cancelled)
			for _, p := range late {
				p.Done(inflight.Cancelled)
			}
		} else if row.underWay {
			clock.Set(600 * time.Millisecond)
			good[19].Done(inflight.Success)
		} else {
			good[19].Done(inflight.Success)
		}
		require.NotEmpty(t, *samples, row.name)
		switch row.name {
		case "neither", "cancelled early":
			assert.Equal(t, row.most, (*samples)[0].RTT, row.name)
		default:
			assert.Greater(t, (*samples)[0].RTT, 100*time.Millisecond, row.name)
			assert.LessOrEqual(t, (*samples)[0].RTT, row.most, row.name)
		}
		assert.False(t, (*samples)[0].Dropped, row.name)
	}
}

// Some calls fail after many times the duration of the longest success. They
// hold permits under any limit, so they do not raise the others' mean time.
func TestCallsThatHangDoNotRaiseTheMean(t *testing.T) {
	const d = 100 * time.Millisecond
	for _, row := range []struct {
		name      string
		outcome   inflight.Outcome
		good      int // successes beside five such calls
		after     time.Duration
		hangs     bool
		cancelled bool
	}{
		{"a deadline of the callers", inflight.Cancelled, 10, 20 * d, true, false},
		{"a timeout of the backend", inflight.Dropped, 10, 20 * d, true, false},
		{"one success of twenty", inflight.Cancelled, 1, 20 * d, true, false},
		{"clients that leave a queue", inflight.Cancelled, 10, 2 * d, false, true},
		{"without any success", inflight.Cancelled, 0, 20 * d, false, true},
	} {
		clock := new(ratelimittest.Clock)
		adaptive, samples := script(50, 50, 50, 50, 50)
		l := newLimiter(t, 100, &options{Adaptive: adaptive, Clock: clock})
		finish(t, l, clock, 20, d, inflight.Success) // the previous window's longest success
		require.Len(t, *samples, 1, row.name)
		var late, good []inflight.Permit
		for range 5 {
			late = append(late, take(t, l, "a", 1))
		}
		for range row.good {
			good = append(good, take(t, l, "a", 1))
		}
		clock.Advance(d)
		for _, p := range good {
			p.Done(inflight.Success)
		}
		clock.Advance(row.after - d)
		for _, p := range late {
			p.Done(row.outcome)
		}
		for len(*samples) < 2 {
			take(t, l, "a", 1).Done(inflight.Dropped)
		}
		s := (*samples)[1]
		if row.hangs {
			assert.Equal(t, d, s.RTT, row.name)
			assert.Zero(t, s.Deviation, row.name)
			assert.Equal(t, row.good, s.Ended, row.name)
		} else {
			assert.Greater(t, s.RTT, d, row.name)
		}
		assert.Equal(t, row.cancelled, s.Cancelled > 0, row.name)
	}
}

// A bug makes calls fail at once. This is no sign of load, even if many calls fail.
func TestWorkThatFailsAtOnceIsNoSignOfOverload(t *testing.T) {
	for name, adaptive := range adaptives {
		clock := new(ratelimittest.Clock)
		l := newLimiter(t, 100, &options{Adaptive: adaptive, Clock: clock})
		for range 20 {
			for range 10 {
				take(t, l, "a", 1).Done(inflight.Cancelled)
			}
			finish(t, l, clock, 10, 100*time.Millisecond, inflight.Success)
		}
		assert.GreaterOrEqual(t, stats(t, l, "a").Limit, 20, name)
	}
}

// threes is an algorithm whose windows have three outcomes.
type threes struct{ inflight.Algorithm }

func (threes) Window() int { return 3 }

func TestWindowOfAnAlgorithmIsTheNumberOfOutcomesInAWindow(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newLimiter(t, 100, &options{Adaptive: func() inflight.Algorithm { return threes{inflight.Learn(nil)()} }, Clock: clock})
	finish(t, l, clock, 2, time.Second, inflight.Dropped)
	assert.Equal(t, 20, stats(t, l, "a").Limit)
	finish(t, l, clock, 1, time.Second, inflight.Dropped)
	assert.Equal(t, 18, stats(t, l, "a").Limit)
}

// A misled probe has taken a queue's latency for the baseline. Latency never rises above
// this baseline, because the limit is at its bound. A later probe corrects the baseline.
func TestBaselineOfAQueueIsFoundOut(t *testing.T) {
	for name, adaptive := range adaptives {
		a, limit := adaptive(), 20
		for window := range 60 {
			rtt := time.Duration(limit) * 10 * time.Millisecond // a backend with one server
			if window < 4 {
				rtt = 200 * time.Millisecond // the latency at the first probe
			}
			limit = a.Update(inflight.Sample{RTT: rtt, Ended: 20, InFlight: limit, Mean: float64(limit), Crowd: float64(limit), Max: 20})
		}
		assert.LessOrEqual(t, limit, 8, name)
	}
}

// If a probe finds a slower backend, it measures again at a third of the
// limit, and at lower limits as long as latency falls. It ends at 1.
func TestAProbeEndsAtALimitOfOne(t *testing.T) {
	alg := inflight.Learn(nil)()
	limit, at, ones := 20, 1000*time.Hour, 0
	for i := range 2000 {
		rtt := 150 * time.Millisecond
		switch {
		case i < 200 && limit > 40:
			rtt = rtt * time.Duration(limit) / 40
		case i < 200:
		case limit == 1:
			rtt = 50 * time.Millisecond
		case limit < 10:
			rtt = 250 * time.Millisecond
		default:
			rtt = 500 * time.Millisecond
		}
		at += 200 * time.Millisecond
		limit = alg.Update(inflight.Sample{RTT: rtt, Served: rtt, InFlight: limit, Mean: float64(limit), Ended: 40, Max: 1000, At: at})
		if ones++; limit > 1 {
			ones = 0
		}
		require.Less(t, ones, 50, "window %d", i)
	}
}
