package sqllimit

import (
	"context"
	"database/sql"
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

func onFake(t *testing.T) (*ratelimittest.Clock, *sql.DB) {
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	return clock, db
}

func made(t *testing.T, db *sql.DB, name string, limit ratelimit.Limit) *Limiter {
	t.Helper()
	l, err := New(db, limit, &Options{Name: name, Timeout: 20 * time.Second})
	require.NoError(t, err)
	return l
}

func reserved[K any](t *testing.T, l ratelimit.Reserver[K], key K, n int) *ratelimit.Reservation {
	t.Helper()
	r, err := l.Reserve(t.Context(), key, n, 0)
	require.NoError(t, err)
	return r
}

func TestConcurrentMatchesACounterOverRandomHistories(t *testing.T) {
	testsize.Sequential(t)
	clock, db := onFake(t)
	for seed := range model.Rounds(100) {
		model.InUse(t, clock, seed, 300, time.Microsecond, func(limit ratelimit.Limit) (all []model.Holder) {
			for range 3 { // the processes
				all = append(all, made(t, db, fmt.Sprint("counter", seed), limit))
			}
			return all
		})
	}
}

func TestConcurrentUnitsLapseByTheDatabasesTime(t *testing.T) {
	clock, db := onFake(t)
	l := made(t, db, "lapse", ratelimit.Concurrent(2, time.Minute))
	one, two := reserved(t, l, "k", 1), reserved(t, l, "k", 1)
	assert.False(t, reserved(t, l, "k", 1).Allowed)
	clock.Advance(40 * time.Second)
	require.NoError(t, one.Extend(t.Context()))
	clock.Advance(20 * time.Second)
	require.ErrorIs(t, two.Extend(t.Context()), ratelimit.ErrLost)
	three := reserved(t, l, "k", 1)
	require.True(t, three.Allowed)
	require.NoError(t, two.Settle(1))
	require.False(t, reserved(t, l, "k", 1).Allowed, "a settlement gives nothing of others back")
	clock.Advance(39 * time.Second)
	require.NoError(t, one.Extend(t.Context()))
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, one.Extend(ended), context.Canceled)
	require.NoError(t, one.Settle(1), "any figure, also the reserved one")
	require.ErrorIs(t, one.Extend(t.Context()), ratelimit.ErrLost)
	require.True(t, reserved(t, l, "k", 1).Allowed)
	require.NoError(t, l.Reset(t.Context(), "k"))
	require.ErrorIs(t, three.Extend(t.Context()), ratelimit.ErrLost)
}

func TestALoweredLimitHoldsForUnitsInUse(t *testing.T) {
	clock, db := onFake(t)
	l := made(t, db, "lowered", ratelimit.Concurrent(4, time.Minute))
	first := reserved(t, l, "k", 2)
	clock.Advance(5 * time.Second)
	later := reserved(t, l, "k", 2)
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(2, 10*time.Second)))
	d := reserved(t, l, "k", 1)
	assert.False(t, d.Allowed)
	assert.Equal(t, 2, d.Debt)
	clock.Advance(5 * time.Second)
	require.ErrorIs(t, first.Extend(t.Context()), ratelimit.ErrLost, "the shorter hold holds for units in use")
	require.NoError(t, later.Extend(t.Context()))
	require.NoError(t, l.Adjust(t.Context(), "k", -1))
	require.True(t, reserved(t, l, "k", 1).Allowed)
}

func TestConcurrentInSQLRefusesCallsWithoutAnEnd(t *testing.T) {
	_, db := onFake(t)
	l := made(t, db, "endless", ratelimit.Concurrent(8, time.Minute).Named("streams"))
	stack, err := ratelimit.All(ratelimit.By(l, identity))
	require.NoError(t, err)
	assert.True(t, l.Describe().Holds)
	assert.True(t, stack.Describe().Holds)
	for _, of := range []interface {
		ratelimit.Reserver[string]
		Wait(context.Context, string, int) error
		Peek(context.Context, string, int) (ratelimit.Decision, error)
	}{l, stack} {
		assert.False(t, of.Allow("k", 1))
		d, err := of.Take(t.Context(), "k", 1)
		require.ErrorContains(t, err, `the limit "streams" is concurrent 8 hold 1m, and this call has no end`)
		assert.Equal(t, "streams", d.Limit.Name)
		require.ErrorContains(t, of.Wait(t.Context(), "k", 1), "no end")
		assert.True(t, of.Allow("k", 0))
		r := reserved(t, of, "k", 0)
		require.True(t, r.Allowed)
		require.NoError(t, r.Extend(t.Context()))
		require.NoError(t, r.Settle(8), "which charges nothing")
		d, err = of.Peek(t.Context(), "k", 8)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
	}
	_, err = New(db, ratelimit.Concurrent(maxLog+1, time.Minute).Named("many"), nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorContains(t, err, "Rate.Units is 10001, want at most 10000 for concurrent")
}

type stream struct{ user, team string }

func TestConcurrentBesideRatesIsOneTransaction(t *testing.T) {
	clock, db := onFake(t)
	layer := func(name string, limit ratelimit.Limit, key func(stream) string, cost func(stream) int) ratelimit.Layer[stream] {
		y := ratelimit.By[stream](made(t, db, name, limit.Named(name)), func(r stream) (string, error) { return key(r), nil })
		y.Cost = cost
		return y
	}
	user, team, one := func(r stream) string { return r.user }, func(r stream) string { return r.team }, func(stream) int { return 1 }
	all, err := ratelimit.All(layer("streams", ratelimit.Concurrent(2, time.Minute), user, one),
		layer("teams", ratelimit.Concurrent(3, time.Minute), team, one), layer("tokens", ratelimit.TokenBucket(ratelimit.PerMinute(60), 100), user, nil))
	require.NoError(t, err)
	ann, bob, eve := stream{"ann", "a"}, stream{"bob", "a"}, stream{"eve", "a"}
	first, second := reserved(t, all, ann, 40), reserved(t, all, ann, 40)
	require.True(t, first.Allowed && second.Allowed)
	assert.Equal(t, "streams", reserved(t, all, ann, 10).Limit.Name)
	require.True(t, reserved(t, all, bob, 10).Allowed)
	denied := reserved(t, all, eve, 10)
	assert.Equal(t, "teams", denied.Limit.Name)
	d, err := all.PeekEach(t.Context(), eve, 1)
	require.NoError(t, err)
	assert.Equal(t, 100, d[2].Remaining, "a denial has charged no tokens")

	clock.Advance(20 * time.Second)
	require.NoError(t, first.Extend(t.Context()))
	clock.Advance(40 * time.Second)
	require.ErrorIs(t, second.Extend(t.Context()), ratelimit.ErrLost)
	require.NoError(t, first.Extend(t.Context()))
	require.NoError(t, first.Settle(40), "the reserved figure gives the units back, too")
	require.ErrorIs(t, first.Extend(t.Context()), ratelimit.ErrLost)
	d, err = all.PeekEach(t.Context(), ann, 1)
	require.NoError(t, err)
	assert.Equal(t, 2, d[0].Remaining)
	assert.Equal(t, 3, d[1].Remaining)
}
