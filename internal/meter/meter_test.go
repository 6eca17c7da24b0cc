package meter

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The tests count in nanoseconds, like package ratelimit.
const (
	second      = int64(1_000_000_000)
	hour        = 3600 * second
	century     = 876_600 * hour
	mostCounted = 1<<62 - 1
)

var kinds = []Kind{TokenBucket, LeakyBucket, FixedWindow, SlidingLog, SlidingCounter, Calendar}

func limitOf(kind Kind, units, per, burst int64) Limit {
	return Limit{Kind: kind, Units: units, Per: per, Burst: burst, Windows: even(per), Horizon: century, Most: mostCounted}
}

func meterOf(kind Kind, units, per, burst int64) *Meter {
	m := New(limitOf(kind, units, per, burst))
	return &m
}

func bucketOf(units, per, burst int64) tokenBucket {
	return newTokenBucket(limitOf(TokenBucket, units, per, burst))
}

// A new algorithm needs a case in all of these functions. If it lacks one, this test panics.
func TestEveryAlgorithmIsNamedWhereItMatters(t *testing.T) {
	for _, kind := range kinds {
		m := meterOf(kind, 10, second, 10)
		assert.True(t, m.Counts())
		assert.NotPanics(t, func() { State{N: 1}.capped(m) }, kind)
		assert.Equal(t, m.family() == familyBucket, m.bucket() != nil, kind)
		assert.Equal(t, m.family() == familyLog, m.log, kind)
	}
	for _, none := range []Kind{0, Concurrent + 1} {
		assert.Panics(t, func() { New(limitOf(none, 1, 1, 1)) })
		assert.Panics(t, func() { (&Meter{kind: none}).family() })
		assert.Panics(t, func() { new(reader).sums(&Meter{kind: none}) })
		assert.Panics(t, func() { (&Meter{kind: none}).windows() })
	}
	assert.False(t, new(Meter).Counts())
}

// Standing and SpendBucket are shortcuts for a token bucket. Their
// results equal those of the general functions and of exact fractions.
func TestTheShortWaysOfATokenBucketAgreeWithTheLongOnes(t *testing.T) {
	r := rand.New(rand.NewPCG(58, 3))
	upTo := func(n int64) int64 { return 1 + r.Int64N(min(n, 1<<r.IntN(62)+1)) }
	limits := 0
	for limits < 3000 {
		units, per, burst := upTo(1<<53), upTo(century), upTo(1<<53)
		if price := new(big.Int).Mul(big.NewInt(burst), big.NewInt(per)); price.Cmp(new(big.Int).Mul(big.NewInt(century), big.NewInt(units))) > 0 {
			continue // the burst takes more than a century to regain
		}
		limits++
		m := meterOf(TokenBucket, units, per, burst)
		now := -r.Int64N(1 << 62)
		s := State{At: now}
		if limits%8 == 0 {
			m.Adjust(&s, now, 2*burst) // a debt
		}
		for range 20 {
			now += r.Int64N(1 << r.IntN(60))
			cost := upTo(burst)
			want := m.earliest(s, now, cost)
			before := s
			at, spent := m.SpendBucket(&s, now, cost)
			if at != want {
				t.Fatalf("%d per %d, burst %d: SpendBucket(%d) of %+v at %d is at %d, not %d", units, per, burst, cost, before, now, at, want)
			}
			if want == now {
				before = m.spend(before, now, cost)
			}
			assert.Equal(t, before, s)
			remaining, debt, regained := m.Standing(s, now)
			spentRemaining, spentDebt, spentRegained, next := m.StandingOf(spent, now)
			assert.Equal(t, []int64{remaining, debt, max(regained, now)}, []int64{spentRemaining, spentDebt, max(spentRegained, now)})
			assert.Equal(t, m.Earliest(s, now, 1), next)
			// A unit is per fractions of a tick. To get the remaining units,
			// subtract the owed fractions from burst·per and divide by per.
			owed := new(big.Int).SetInt64(max(0, s.At-now))
			owed.Mul(owed, big.NewInt(m.token.units))
			if s.At >= now {
				owed.Add(owed, big.NewInt(s.N))
			}
			left := new(big.Int).Mul(big.NewInt(burst), big.NewInt(m.token.per))
			left.Sub(left, owed)
			exact := max(0, left.Div(left, big.NewInt(m.token.per)).Int64())
			if remaining != exact || remaining != m.Remaining(s, now) || regained != m.Regained(s) {
				t.Fatalf("%d per %d, burst %d: Standing of %+v at %d is %d, %d, not %d, %d", units, per, burst, s, now, remaining, regained, exact, m.Regained(s))
			}
		}
	}
}
