package meter

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// served makes one try in each step, and counts those that pass. limit returns the limit at each instant.
func served(t testing.TB, tries, step int64, limit func(now int64) *Meter) (n int64) {
	var s State
	m := limit(0)
	for i := range tries {
		now := i * step
		if to := limit(now); to != m {
			m.Advance(&s, now)
			m.Refresh(&s)
			s, m = to.Migrate(m, s, now), to
		}
		if m.Allow(&s, now, 1) {
			n++
		}
		if m.log && s.detail != nil {
			require.LessOrEqual(t, s.N, m.capacity())
		}
	}
	return n
}

func inTurn(each int64, limits ...*Meter) func(now int64) *Meter {
	return func(now int64) *Meter { return limits[now/each%int64(len(limits))] }
}

// A fleet that divides a limit by its number of processes changes its limits often. Each spending keeps its instant, so
// the changing limit serves at least as much as the lower limit alone. A tick is first a millisecond, then a microsecond.
func TestALimitThatFlipsServesAtLeastWhatTheLowerOneWould(t *testing.T) {
	testsize.Arithmetic(t)
	for kind := TokenBucket; kind < Calendar; kind++ {
		low, high := meterOf(kind, 100, 60_000, 100), meterOf(kind, 150, 60_000, 150)
		for _, each := range []int64{500, 5000, 7000, 20_000} {
			assert.GreaterOrEqual(t, served(t, 7200, 500, inTurn(each, low, high)), served(t, 7200, 500, inTurn(1, low)), "%v, each %d ms", kind, each)
		}
		low, high = meterOf(kind, 100, 1_000_000, 100), meterOf(kind, 101, 1_000_000, 101)
		assert.GreaterOrEqual(t, served(t, 20_000, 100, inTurn(100, low, high)), served(t, 20_000, 100, inTurn(1, low)), "%v", kind)
	}
}

func TestAnySequenceOfLogsServesAtLeastWhatTheLowestWould(t *testing.T) {
	testsize.Arithmetic(t)
	for seed := range uint64(testsize.Of(400, 60_000)) {
		r := rand.New(rand.NewPCG(seed, 67))
		limits := make([]*Meter, 2+r.IntN(3))
		per, least := 1+r.Int64N(60), int64(1<<40)
		for i := range limits {
			limits[i] = meterOf(SlidingLog, 1+r.Int64N(12), per, 0)
		}
		step, changes := 1+r.Int64N(3), 1+r.IntN(40)
		for _, m := range limits {
			least = min(least, served(t, 400, step, inTurn(1, m)))
		}
		now := limits[0]
		n := served(t, 400, step, func(int64) *Meter {
			if r.IntN(changes) == 0 {
				now = limits[r.IntN(len(limits))]
			}
			return now
		})
		require.GreaterOrEqual(t, n, least, "seed %d", seed)
	}
}

// sixtyAnd returns limits of all algorithms, with windows of several lengths.
// All serve the same number of units a minute. A tick is a millisecond.
func sixtyAnd(units int64) (all []*Meter) {
	for _, x := range []struct {
		kind Kind
		per  int64
	}{{TokenBucket, 60_000}, {LeakyBucket, 60_000}, {FixedWindow, 60_000}, {FixedWindow, 7000}, {SlidingLog, 60_000}, {SlidingLog, 20_000},
		{SlidingCounter, 60_000}, {SlidingCounter, 30_000}, {Calendar, 60_000}} {
		l := Limit{Kind: x.kind, Units: units * x.per / 60_000, Per: x.per, Burst: units, Horizon: 1 << 45, Most: 1 << 50}
		if x.kind == Calendar {
			l.Windows = even(x.per)
		}
		m := New(l)
		all = append(all, &m)
	}
	return all
}

// A limit changes between two algorithms or two lengths of windows. Under
// each limit the key continues as if that limit had always been in force.
func TestALimitThatFlipsBetweenAlgorithmsServesWhatTheLowerOneWould(t *testing.T) {
	testsize.Arithmetic(t)
	tries := int64(testsize.Of(1200, 7200))
	lows, highs := sixtyAnd(100), sixtyAnd(150)
	alone := make(map[*Meter]int64)
	for _, m := range append(slices.Clone(lows), highs...) {
		alone[m] = served(t, tries, 500, inTurn(1, m))
	}
	for _, low := range lows {
		for _, high := range highs {
			for _, each := range []int64{1000, 5000, 7000, 20_000, 61_000} {
				n := served(t, tries, 500, inTurn(each, low, high))
				assert.GreaterOrEqual(t, n, min(alone[low], alone[high]), "%v and %v, each %d ms", low.algorithm, high.algorithm, each)
			}
		}
	}
}

// Up to nine limits follow each other, in a cycle or at random. They lose at most one capacity in all, at the first changes.
func TestAnySequenceOfLimitsServesWhatTheLowestWould(t *testing.T) {
	testsize.Arithmetic(t)
	tries := int64(testsize.Of(4800, 14_400))
	for seed := range uint64(testsize.Of(60, 1000)) {
		r := rand.New(rand.NewPCG(seed, 671))
		all := append(sixtyAnd(100), sixtyAnd(150)...)
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:2+r.IntN(8)]
		least := int64(1 << 40)
		for _, m := range all {
			least = min(least, served(t, tries, 500, inTurn(1, m)))
		}
		n := served(t, tries, 500, inTurn(1000+r.Int64N(20_000), all...))
		assert.GreaterOrEqual(t, n, least-150, "seed %d, in turn", seed)
		now, changes := all[0], 1+r.IntN(40)
		n = served(t, tries, 500, func(int64) *Meter {
			if r.IntN(changes) == 0 {
				now = all[r.IntN(len(all))]
			}
			return now
		})
		assert.GreaterOrEqual(t, n, least-150, "seed %d, at random", seed)
	}
}

// A key that is fresh under one limit stays fresh when the next limit comes. It
// does so even if it once owed parts of a unit under a limit like the next one.
func TestAFreshKeyStaysFreshUnderALimitThatComesBack(t *testing.T) {
	queue, log, bucket := New(limitOf(LeakyBucket, 5, 100, 17)), New(limitOf(SlidingLog, 20, 10, 20)), New(limitOf(TokenBucket, 1, 60, 6))
	for now := int64(170); now < 300; now++ {
		var s State
		queue.Adjust(&s, 0, 7)
		s = log.Migrate(&queue, s, 103)
		log.Adjust(&s, 103, 29)
		require.Equal(t, log.capacity(), log.Remaining(s, now))
		s = bucket.Migrate(&log, s, now)
		require.Equal(t, bucket.capacity(), bucket.Remaining(s, now), "%d", now)
		require.LessOrEqual(t, bucket.regained(s), now)
	}
}
