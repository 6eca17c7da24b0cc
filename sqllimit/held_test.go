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

func TestConcurrentBesideRatesIsOneTransaction(t *testing.T) {
	model.BesideRates(t, func(t *testing.T) model.Store {
		clock, db := onFake(t)
		return model.Store{Clock: clock, New: func(limit ratelimit.Limit) ratelimit.Reserver[string] {
			return made(t, db, limit.Name, limit)
		}}
	})
}
