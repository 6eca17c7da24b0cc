package model

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// Moves plays calls to a language model while the limit's figures change: once during nine calls, by 1 % each
// second, or with each call, as if two versions of a service ran side by side. Open reservations must still
// give their units back. The function new returns a limiter; limiters with the same name share their keys.
func Moves(t *testing.T, clock Clock, new func(name string, l ratelimit.Limit) Flipped) {
	t.Run("once", func(t *testing.T) {
		l := new("once", perMinute(1_000_000))
		var open []*ratelimit.Reservation
		for range 9 {
			r, err := l.Reserve(t.Context(), "k", 100_000, 0)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			open = append(open, r)
		}
		require.NoError(t, l.SetLimit(perMinute(1_001_000)))
		for _, r := range open {
			require.NoError(t, r.Settle(2000))
		}
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, 983_000, d.Remaining)
	})
	t.Run("each second", func(t *testing.T) {
		m := &moving{Flipped: new("second", TokensPerMinute), clock: clock, percent: 100, at: clock.Now()}
		used, over := play(t, clock, ratelimit.Reserver[string](m), perMinute(110_000), []string{"k"}, 10*time.Minute, m.call)
		mean := m.sum / m.seconds * 1000
		t.Logf("%d of %d", used, mean)
		assert.GreaterOrEqual(t, used, mean*98/100)
		assert.Zero(t, over, "tokens beyond the bound of the highest limit")
	})
	t.Run("with each call", func(t *testing.T) {
		two := InTurn[string](new("versions", TokensPerMinute), new("versions", perMinute(101_000)))
		used, over := play(t, clock, two, perMinute(101_000), []string{"k"}, 10*time.Minute, (&moving{}).call)
		t.Log(used)
		assert.GreaterOrEqual(t, used, 98_000)
		assert.Zero(t, over, "tokens beyond the bound of the higher limit")
	})
}

func perMinute(tokens int) ratelimit.Limit {
	return ratelimit.TokenBucket(ratelimit.PerMinute(tokens), tokens)
}

// moving is a limiter whose limit moves between 90 and 110 % of TokensPerMinute.
type moving struct {
	Flipped
	clock   Clock
	at      time.Duration // when it changes next
	percent int
	seconds int
	sum     int // the sum of the percentages
	rnd     *rand.Rand
}

func (m *moving) random() *rand.Rand {
	if m.rnd == nil {
		m.rnd = rand.New(rand.NewPCG(68, 5))
	}
	return m.rnd
}

func (m *moving) call() modelCall {
	r := m.random()
	c := modelCall{estimate: 1000 + r.IntN(3001), length: time.Duration(r.Int64N(int64(6 * time.Second)))}
	share := r.Float64()
	c.actual = int(float64(c.estimate) * share * share)
	return c
}

func (m *moving) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	for ; m.at <= m.clock.Now(); m.at += time.Second {
		m.percent = min(110, max(90, m.percent+2*m.random().IntN(2)-1))
		m.sum, m.seconds = m.sum+m.percent, m.seconds+1
		if err := m.SetLimit(perMinute(1000 * m.percent)); err != nil {
			return nil, err
		}
	}
	return m.Flipped.Reserve(ctx, key, cost, maxDelay)
}
