package meter

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// The tests count in nanoseconds, as package ratelimit does.
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

// Whoever adds an algorithm has to say everywhere what it is. Where it is forgotten, this
// test panics.
func TestEveryAlgorithmIsNamedWhereItMatters(t *testing.T) {
	for _, kind := range kinds {
		m := meterOf(kind, 10, second, 10)
		assert.True(t, m.Counts())
		assert.NotPanics(t, func() { State{N: 1}.capped(m) }, kind)
		assert.Equal(t, m.family() == familyBucket, m.bucket() != nil, kind)
		assert.Equal(t, m.family() == familyLog, m.log, kind)
	}
	for _, none := range []Kind{0, Calendar + 1} {
		assert.Panics(t, func() { New(limitOf(none, 1, 1, 1)) })
		assert.Panics(t, func() { (&Meter{kind: none}).family() })
		assert.Panics(t, func() { new(reader).sums(&Meter{kind: none}) })
		assert.Panics(t, func() { (&Meter{kind: none}).windows() })
	}
	assert.False(t, new(Meter).Counts())
}
