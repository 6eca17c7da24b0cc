package ratelimit

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever adds an algorithm has to say how it is counted. Where it is forgotten, this test
// panics.
func TestEveryAlgorithmHasAPlan(t *testing.T) {
	for a := range algorithmNames {
		l := Limit{Algorithm: Algorithm(a), Rate: PerSecond(10)}
		switch l.Algorithm {
		case 0:
			continue
		case AlgorithmTokenBucket, AlgorithmLeakyBucket:
			l.Burst = 10
		case AlgorithmUnlimited, AlgorithmBlocked:
			l.Rate = Rate{}
		case AlgorithmCalendar:
			l = Calendar(10, Day("UTC"))
		}
		p, err := newPlan(l, 0, &calendars{clock: systemClock{}})
		require.NoError(t, err, l)
		untracked := l.Algorithm == AlgorithmUnlimited || l.Algorithm == AlgorithmBlocked
		require.Equal(t, !untracked, p.tracks(), l)
	}
}

func TestAnOrdinaryCostIsFromOneToTheCapacity(t *testing.T) {
	for _, capacity := range []int64{1, 5, math.MaxInt} {
		p := &plan{capacity: capacity}
		for _, cost := range []int{math.MinInt, -5, -1, 0, 1, 2, 4, 5, 6, math.MaxInt - 1, math.MaxInt} {
			assert.Equal(t, cost >= 1 && int64(cost) <= capacity, p.ordinary(cost), "%d of %d", cost, capacity)
		}
	}
}

func TestAnAccountIsACacheLine(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 {
		assert.EqualValues(t, 64, unsafe.Sizeof(account{}))
	}
}
