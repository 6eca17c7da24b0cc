package sqllimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// hashed hashes keys too long for a row, as a user would.
type hashed struct{ *Limiter }

func short(key string) string {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "hash " + hex.EncodeToString(sum[:])
}

func (l hashed) Allow(key string, cost int) bool { return l.Limiter.Allow(short(key), cost) }

func (l hashed) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.Limiter.Take(ctx, short(key), cost)
}

func (l hashed) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.Limiter.Peek(ctx, short(key), cost)
}

// Join does not hash keys, so they must be short enough for a row.
func (l hashed) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) {
	for i := range limiters {
		if other, ok := limiters[i].Limiter.(hashed); ok {
			limiters[i].Limiter = other.Limiter
		}
	}
	return l.Limiter.Join(limiters)
}

// The same suite runs on real servers in internal/proofs/sqltest.
func TestSuite(t *testing.T) {
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	made := 0
	ratelimittest.Run(t, ratelimittest.Config{
		Clock:      clock,
		Resolution: time.Microsecond,
		Histories:  6,
		Accepts: func(l ratelimit.Limit) bool {
			_, err := newPlan(l)
			return err == nil
		},
		Want: []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit", "Calendar", "Join"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made++
			l, err := New(db, limit, &Options{Name: fmt.Sprint("suite", made), Timeout: 20 * time.Second})
			return hashed{l}, err
		},
		NewPair: func(limit ratelimit.Limit) (a, b ratelimit.Limiter[string], err error) {
			made++
			o := &Options{Name: fmt.Sprint("pair", made), Timeout: 20 * time.Second}
			one, err := New(db, limit, o)
			if err != nil {
				return nil, nil, err
			}
			other, err := New(db, limit, o)
			return hashed{one}, hashed{other}, err
		},
	})
}

func TestCallsThatOverlapUseTheWholeLimit(t *testing.T) {
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	l, err := New(db, model.TokensPerMinute, &Options{Name: "tokens"})
	require.NoError(t, err)
	assert.InDelta(t, 100_000, model.Overlap(t, clock, l, "tenant"), 5000)
}

// Three processes share a key for an hour. They use as much as callers of one limiter in memory.
func TestAnHourOfCallsOfSeveralProcessesUsesAsMuchAsInMemory(t *testing.T) {
	testsize.Sequential(t)
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	var fleet []ratelimit.Reserver[string]
	for range 3 {
		l, err := New(db, model.TokensPerMinute, &Options{Name: "hour", Timeout: time.Minute})
		require.NoError(t, err)
		fleet = append(fleet, l)
	}
	used, over := model.Hour(t, clock, model.InTurn(fleet...), []string{"tenant"}, 0)
	require.Zero(t, over, "tokens beyond the bound")
	memory, err := ratelimit.New(model.TokensPerMinute, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	inMemory, _ := model.Hour(t, clock, memory, []string{"tenant"}, 0)
	assert.InEpsilon(t, inMemory, used, 0.005)
}

func TestALoweredLimitBarsNoKeyForLongerThanItsOwnRefill(t *testing.T) {
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	month := ratelimit.Month("UTC", 1)
	l, err := New(db, ratelimit.Calendar(1_000_000, month), &Options{Name: "plans"})
	require.NoError(t, err)
	require.True(t, l.Allow("ann", 400_000))
	require.True(t, l.Allow("ann", 100_000))
	before, err := l.Peek(t.Context(), "ann", 1)
	require.NoError(t, err)

	require.NoError(t, l.SetLimit(ratelimit.Calendar(10_000, month)))
	d, err := l.Take(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Equal(t, before.ResetAfter, d.RetryAfter, "the next month, and not the 50th")

	require.NoError(t, l.SetLimit(ratelimit.Calendar(1_000_000, month)))
	d, err = l.Peek(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, 500_000, d.Remaining, "what was set aside counts again")
}

// One process changes its limit back and forth, or two processes have different limits. The real costs stay within the bound.
func TestSettlementsAmongChangesOfLimitsPassNoMoreThanTheBound(t *testing.T) {
	testsize.Sequential(t)
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	model.Flips(t, clock, testsize.Seed(1), testsize.Of(40, 1000), func(name string, limit ratelimit.Limit) model.Flipped {
		l, err := New(db, limit, &Options{Name: name, Timeout: time.Minute})
		require.NoError(t, err)
		return l
	})
}

// Two processes have different limits, for example while a fleet's
// share is rolled out. The key's spendings keep their instants.
func TestALogThatFlipsServesAsMuchAsTheLowerLimit(t *testing.T) {
	testsize.Sequential(t)
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	var two [2]*Limiter
	for i, units := range []int{100, 150} {
		var err error
		two[i], err = New(db, ratelimit.SlidingLog(ratelimit.PerMinute(units)), &Options{Name: "flips", Timeout: time.Minute})
		require.NoError(t, err)
	}
	served := 0
	for i := range 5 * 120 {
		d, err := two[i/10%2].Take(t.Context(), "k", 1)
		require.NoError(t, err)
		if d.Allowed {
			served++
		}
		clock.Advance(500 * time.Millisecond)
	}
	require.GreaterOrEqual(t, served, 500)
	require.LessOrEqual(t, served, 750)
}

// One process changes its limit, or two versions of a service have different limits.
func TestOpenReservationsSurviveAMovingLimit(t *testing.T) {
	testsize.Sequential(t)
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	model.Moves(t, clock, func(name string, limit ratelimit.Limit) model.Flipped {
		l, err := New(db, limit, &Options{Name: name, Timeout: time.Minute})
		require.NoError(t, err)
		return l
	})
}
