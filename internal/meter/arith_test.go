package meter

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSumsThatOverflowAreTheLargestNumber(t *testing.T) {
	const most = math.MaxInt64
	for _, test := range []struct{ a, b, want int64 }{
		{1, 2, 3}, {most, 0, most}, {most, 1, most}, {1, most, most}, {most, most, most}, {most, -1, most - 1}, {-5, 3, -2}, {-5, -3, -8},
	} {
		assert.Equal(t, test.want, Add(test.a, test.b), "%d + %d", test.a, test.b)
	}
}

// units returns the span as a number of 1/t.units ns.
func (d span) units(t *tokenBucket) *big.Int {
	n := new(big.Int).Mul(big.NewInt(d.ticks), big.NewInt(t.units))
	return n.Add(n, big.NewInt(d.frac))
}

// The units regained in a span are counted in 128 bits, and the fraction may carry into the upper half.
func TestWorthIsExact(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 3))
	for range 20_000 {
		bucket := &tokenBucket{per: 1 + rnd.Int64N(1<<rnd.IntN(62)), units: 1 + rnd.Int64N(1<<53), horizon: century}
		d := span{rnd.Int64N(century), rnd.Int64N(bucket.units)}
		if rnd.IntN(2) == 0 { // just below a multiple of 2^64 when multiplied by units
			k := new(big.Int).Lsh(big.NewInt(1+rnd.Int64N(8)), 64)
			d = span{k.Div(k, big.NewInt(bucket.units)).Int64(), bucket.units - 1}
		}
		q, r := new(big.Int).QuoRem(d.units(bucket), big.NewInt(bucket.per), new(big.Int))
		if !q.IsInt64() {
			continue
		}
		n, rem := bucket.worth(d)
		require.Equal(t, []int64{q.Int64(), r.Int64()}, []int64{n, rem}, "%+v of %+v", d, bucket)
	}
}

func TestNoPriceIsAboveACentury(t *testing.T) {
	bucket := bucketOf(1, century/2, 2)
	assert.Equal(t, span{ticks: century / 2}, bucket.price(1))
	assert.Equal(t, span{ticks: century}, bucket.price(2))
	assert.Equal(t, span{ticks: century}, bucket.price(3))
	assert.Equal(t, span{ticks: century}, bucket.price(math.MaxInt64))
}

func TestBoundsOfABucket(t *testing.T) {
	const day = 24 * hour
	for _, test := range []struct {
		name              string
		bucket            tokenBucket
		maxDebt, maxAhead int64
	}{
		{"a century's worth", bucketOf(1, day, 1), century / day, century - day},
		{"no more than can be counted", bucketOf(1<<30, 1, 1), mostCounted, mostCounted >> 30},
		{"no less than the capacity", tokenBucket{per: 1, units: 1 << 53, capacity: math.MaxInt64, full: span{1024, 0}, horizon: century}, math.MaxInt64, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			maxDebt, maxAhead := test.bucket.bounds(mostCounted)
			assert.Equal(t, test.maxDebt, maxDebt)
			assert.InDelta(t, test.maxAhead, maxAhead, 1)
		})
	}
}

// A debt in one bucket is worth the same in another, rounded up to 1/units of a ns.
func TestConvertedDebtIsRoundedUpToTheLastFraction(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 4))
	for range 20_000 {
		from := bucketOf(1+rnd.Int64N(30), 1+rnd.Int64N(30), 5)
		to := bucketOf(1+rnd.Int64N(30), 1+rnd.Int64N(30), 5)
		owed := span{rnd.Int64N(1000), rnd.Int64N(from.units)}
		got := to.convert(&from, State{At: owed.ticks, N: owed.frac}, 0)
		// got / to.per is at least owed / from.per, and one fraction less is not
		want := new(big.Int).Mul(owed.units(&from), big.NewInt(to.per))
		want.Add(want, big.NewInt(from.per-1)).Div(want, big.NewInt(from.per))
		require.Equal(t, want.String(), span{got.At, got.N}.units(&to).String(), "%+v: %+v to %+v", owed, from, to)
	}
}

func TestConvertedDebtIsAtMostACentury(t *testing.T) {
	from, to := bucketOf(1000, 1, 5), bucketOf(1, 7*hour, 1)
	s := to.convert(&from, State{At: century, N: from.units - 1}, 0)
	assert.Equal(t, State{At: century}, s)
	from = bucketOf(3, 7, 5) // a fraction of a unit is left
	s = to.convert(&from, State{At: century - 1}, 0)
	assert.Equal(t, State{At: century}, s)
	from, to = bucketOf(1, 2, 5), bucketOf(5, 7, 5) // the debt shrinks to 0.7 of itself: a century and 0.3 ns
	s = to.convert(&from, State{At: (century/7*10 + century%7*10/7) + 1}, 0)
	assert.Equal(t, State{At: century}, s)
}

func TestABookedWindowCountsEarlierOnesAsFull(t *testing.T) {
	w := &fixedWindow{per: 100, units: 10, most: 1000}
	assert.EqualValues(t, 3, w.spent(State{At: 150, N: 3}, 150))
	assert.EqualValues(t, 13, w.spent(State{At: 150, N: 3}, 149))
	assert.EqualValues(t, 13, w.spent(State{At: 150, N: 3}, 50))
	assert.EqualValues(t, 23, w.spent(State{At: 150, N: 3}, 49))
	c := &slidingCounter{per: 100, units: 10, most: 1000}
	assert.EqualValues(t, 5, c.weight(State{At: 150, M: 5}, 50), "no more than it holds, before it")
	assert.EqualValues(t, 18, c.spent(State{At: 150, N: 3, M: 5}, 149))
}

func TestNoMoreIsCarriedOverThanALimitLetsAKeyOwe(t *testing.T) {
	for _, kind := range kinds {
		m := meterOf(kind, 1, 24*hour, 1)
		s := m.charged(5, math.MaxInt64/4)
		assert.LessOrEqual(t, m.spent(s, 5), m.maxDebt, kind)
		assert.Positive(t, m.regained(s), kind)
	}
}

// Once a booking is due, it no longer counts as one.
func TestNothingIsBookedThatIsDue(t *testing.T) {
	for _, kind := range kinds {
		if kind == LeakyBucket {
			continue // a full queue delays the cost, but does not book it
		}
		a, b := meterOf(kind, 1, second, 1), meterOf(TokenBucket, 1, hour, 7)
		s := a.spend(State{}, 0, 1)
		sp := Spending{At: a.earliest(s, 0, 1), Cost: 1}
		s = a.book(s, sp)
		assert.NotNil(t, b.bookings(b.Migrate(a, s, sp.At-1)), kind)
		assert.Nil(t, b.bookings(b.Migrate(a, s, sp.At)), kind)
	}
}
