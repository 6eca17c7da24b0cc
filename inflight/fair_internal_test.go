package inflight

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPricesAddUpExactly(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		x := tags{weight: 1 + rng.Uint64N(maxWeight)}
		sum := new(big.Int)
		for range 100 {
			n := 1 + rng.IntN(1<<20)
			x.spend(n)
			sum.Add(sum, big.NewInt(int64(n)))
		}
		sum.Mul(sum, big.NewInt(ticks)).Div(sum, new(big.Int).SetUint64(x.weight))
		assert.Equal(t, sum.Uint64(), x.start, "weight %d: nothing is lost to rounding", x.weight)
	}
}

func TestPriceIsCapped(t *testing.T) {
	for _, weight := range []uint64{1, 2, maxWeight} {
		p, rem := price(math.MaxInt, weight, weight-1)
		assert.LessOrEqual(t, p, uint64(maxPrice))
		assert.Less(t, rem, weight)
	}
}

func TestVirtualTimeWrapsAround(t *testing.T) {
	assert.True(t, before(math.MaxUint64-5, 3))
	assert.False(t, before(3, math.MaxUint64-5))
	x := tags{weight: 1}
	x.startAt(math.MaxUint64 - 10)
	x.plan(1)
	assert.True(t, before(x.start, x.finish))
	x.delayTo(x.finish + 7)
	assert.Equal(t, uint64(ticks), x.finish-x.start)
}

func TestWeightsThatCount(t *testing.T) {
	for weight, want := range map[int]uint64{math.MinInt: 1, -1: 1, 0: 1, 1: 1, 7: 7, maxWeight: maxWeight, maxWeight + 1: maxWeight, math.MaxInt: maxWeight} {
		assert.Equal(t, want, weightOf(weight))
	}
}
