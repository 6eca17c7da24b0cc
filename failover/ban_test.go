package failover_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/failover"
)

// The stand-in is stricter than the shared limit. Its denials are not strikes.
func TestADegradedDenialIsNoStrike(t *testing.T) {
	s := newStore(t, ratelimit.FixedWindow(ratelimit.PerHour(20)))
	standIn := newLocal(t, ratelimit.FixedWindow(ratelimit.PerHour(2)))
	l := over(t, s, standIn, failover.Options{Failures: 1, OpenFor: time.Hour})
	strikes := newLocal(t, ratelimit.FixedWindow(ratelimit.PerHour(2)))
	bans := newLocal(t, ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("bans"))
	b, err := ban.New[string](l, strikes, bans)
	require.NoError(t, err)

	s.fail(down)
	granted, d, err := ratelimit.TakeUpTo[string](t.Context(), b, "k", 10)
	require.NoError(t, err)
	require.Equal(t, 2, granted, "what stands in has two")
	require.True(t, d.Degraded)
	for range 9 {
		d, err = b.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.True(t, d.Degraded)
	}
	require.Zero(t, strikes.Stats().Keys)

	// the shared limit's own denials count as strikes
	healthy := over(t, newStore(t, ratelimit.FixedWindow(ratelimit.PerHour(20))), standIn, failover.Options{Timeout: time.Minute})
	b, err = ban.New[string](healthy, strikes, bans)
	require.NoError(t, err)
	granted, _, err = ratelimit.TakeUpTo[string](t.Context(), b, "k", 100)
	require.NoError(t, err)
	require.Equal(t, 20, granted)
	require.False(t, b.Allow("k", 1))
	d, err = ratelimit.Peek[string](t.Context(), strikes, "k", 1)
	require.NoError(t, err)
	require.Equal(t, 1, d.Remaining, "TakeUpTo's denial and this one are a strike")
	require.NoError(t, b.Strike(t.Context(), "k", 1))
	d, err = b.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, bans.Describe().Limits[0], d.Limit)
}

// Bans may be kept in a store behind a failover. While the store is down, no ban is known, and the stand-in decides.
func TestBansMayFailOver(t *testing.T) {
	s := newStore(t, ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("bans"))
	bans := over(t, s, failover.AllowAll[string](), failover.Options{Failures: 1, OpenFor: time.Hour, Timeout: time.Minute})
	b, err := ban.New[string](newLocal(t, ratelimit.FixedWindow(ratelimit.PerHour(9))), newLocal(t, ratelimit.FixedWindow(ratelimit.PerHour(1))), bans)
	require.NoError(t, err)
	require.NoError(t, b.Strike(t.Context(), "k", 1))
	require.False(t, b.Allow("k", 1))
	s.fail(down)
	for bans.Stats().State != failover.StateOpen {
		_, err = bans.Take(t.Context(), "other", 1)
		require.NoError(t, err)
	}
	d, err := b.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.ErrorIs(t, b.Reset(t.Context(), "k"), ratelimit.ErrUnavailable)
}
