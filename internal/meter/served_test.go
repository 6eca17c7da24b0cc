package meter

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// served returns how many of the tries, one in each step, pass under the limit that holds at each.
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

// A fleet that divides a limit by the number of its processes changes it often. Its spendings keep their instants, so that the
// limit serves no less than the lower one alone. Ticks are milliseconds, and then microseconds.
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
