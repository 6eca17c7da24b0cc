package ratelimit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSumsThatOverflowAreTheLargestNumber(t *testing.T) {
	const most = math.MaxInt64
	for _, test := range []struct{ a, b, want int64 }{
		{1, 2, 3}, {most, 0, most}, {most, 1, most}, {1, most, most}, {most, most, most}, {most, -1, most - 1}, {-5, 3, -2}, {-5, -3, -8},
	} {
		assert.Equal(t, test.want, satAdd(test.a, test.b), "%d + %d", test.a, test.b)
	}
}

// units returns a span as 1/units ns.
func (d span) units(t *tokenBucket) *big.Int {
	n := new(big.Int).Mul(big.NewInt(d.ns), big.NewInt(t.units))
	return n.Add(n, big.NewInt(d.frac))
}

// What is regained in a span is counted in 128 bits, and the fraction may carry into the
// upper half.
func TestWorthIsExact(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 3))
	for range 20_000 {
		bucket := &tokenBucket{per: 1 + rnd.Int64N(1<<rnd.IntN(62)), units: 1 + rnd.Int64N(1<<53)}
		d := span{rnd.Int64N(century), rnd.Int64N(bucket.units)}
		if rnd.IntN(2) == 0 { // ns · units just below a multiple of 2^64
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
	bucket := newTokenBucket(Per(1, time.Duration(century/2)), 2)
	assert.Equal(t, span{ns: century / 2}, bucket.price(1))
	assert.Equal(t, span{ns: century}, bucket.price(2))
	assert.Equal(t, span{ns: century}, bucket.price(3))
	assert.Equal(t, span{ns: century}, bucket.price(math.MaxInt64))
}

func TestBoundsOfABucket(t *testing.T) {
	const day = int64(24 * time.Hour)
	for _, test := range []struct {
		name              string
		bucket            tokenBucket
		maxDebt, maxAhead int64
	}{
		{"a century's worth", newTokenBucket(PerDay(1), 1), century / day, century - day},
		{"no more than can be counted", newTokenBucket(Per(1<<30, 1), 1), mostCounted, mostCounted >> 30},
		{"no less than the capacity", tokenBucket{per: 1, units: 1 << 53, capacity: math.MaxInt64, full: span{1024, 0}}, math.MaxInt64, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			maxDebt, maxAhead := test.bucket.bounds()
			assert.Equal(t, test.maxDebt, maxDebt)
			assert.InDelta(t, test.maxAhead, maxAhead, 1)
		})
	}
}

// What is owed to one bucket is worth as much to another, rounded up to 1/units ns.
func TestConvertedDebtIsRoundedUpToTheLastFraction(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 4))
	for range 20_000 {
		from := newTokenBucket(Per(1+rnd.IntN(30), time.Duration(1+rnd.IntN(30))), 5)
		to := newTokenBucket(Per(1+rnd.IntN(30), time.Duration(1+rnd.IntN(30))), 5)
		owed := span{rnd.Int64N(1000), rnd.Int64N(from.units)}
		got := to.convert(&from, state{at: owed.ns, n: owed.frac}, 0)
		// got / to.per ≥ owed / from.per, and one fraction less is not
		want := new(big.Int).Mul(owed.units(&from), big.NewInt(to.per))
		want.Add(want, big.NewInt(from.per-1)).Div(want, big.NewInt(from.per))
		require.Equal(t, want.String(), span{got.at, got.n}.units(&to).String(), "%+v: %+v to %+v", owed, from, to)
	}
}

func TestConvertedDebtIsAtMostACentury(t *testing.T) {
	from, to := newTokenBucket(Per(1000, 1), 5), newTokenBucket(Per(1, 7*time.Hour), 1)
	s := to.convert(&from, state{at: century, n: from.units - 1}, 0)
	assert.Equal(t, state{at: century}, s)
	from = newTokenBucket(Per(3, 7), 5) // so that a fraction of a unit is left
	s = to.convert(&from, state{at: century - 1}, 0)
	assert.Equal(t, state{at: century}, s)
}

func TestAWindowThatIsBookedCountsWhatIsBeforeItAsFull(t *testing.T) {
	w := &fixedWindow{per: 100, units: 10, most: 1000}
	assert.EqualValues(t, 3, w.spent(state{at: 150, n: 3}, 150))
	assert.EqualValues(t, 13, w.spent(state{at: 150, n: 3}, 149))
	assert.EqualValues(t, 13, w.spent(state{at: 150, n: 3}, 50))
	assert.EqualValues(t, 23, w.spent(state{at: 150, n: 3}, 49))
	c := &slidingCounter{per: 100, units: 10, most: 1000}
	assert.EqualValues(t, 5, c.weight(state{at: 150, m: 5}, 50), "no more than it holds, before it")
	assert.EqualValues(t, 18, c.spent(state{at: 150, n: 3, m: 5}, 149))
}

func TestNoMoreIsCarriedOverThanALimitLetsAKeyOwe(t *testing.T) {
	for _, limit := range []Limit{TokenBucket(PerDay(1), 1), LeakyBucket(PerDay(1), 1), FixedWindow(PerDay(1)), SlidingLog(PerDay(1)), SlidingCounter(PerDay(1))} {
		p, err := newPlan(limit, 0)
		require.NoError(t, err)
		s := p.charged(5, math.MaxInt64/4)
		assert.LessOrEqual(t, p.spent(s, 5), p.maxDebt, limit)
		assert.Positive(t, p.regained(s), limit)
	}
}

// What is due by now is no booking any more.
func TestNothingIsBookedThatIsDue(t *testing.T) {
	for _, from := range []Limit{TokenBucket(PerSecond(1), 1), FixedWindow(PerSecond(1)), SlidingLog(PerSecond(1)), SlidingCounter(PerSecond(1))} {
		a, err := newPlan(from, 0)
		require.NoError(t, err)
		b, err := newPlan(TokenBucket(PerHour(1), 7), 0)
		require.NoError(t, err)
		s := a.spend(state{}, 0, 1)
		sp := spending{at: a.earliest(s, 0, 1), cost: 1}
		s = a.book(s, sp)
		assert.NotNil(t, carry(a, b, s, sp.at-1).detail, from)
		assert.Nil(t, carry(a, b, s, sp.at).detail, from)
	}
}
