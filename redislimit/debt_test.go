package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

func TestTheDebtOfAKeyIsReadOnRedisAsInMemory(t *testing.T) {
	client := startServer(t).client()
	rate := ratelimit.PerHour(10)
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(rate, 10), ratelimit.LeakyBucket(rate, 10), ratelimit.FixedWindow(rate),
		ratelimit.SlidingLog(rate), ratelimit.SlidingCounter(rate), ratelimit.Calendar(10, ratelimit.Month("UTC", 1))} {
		name := limit.Algorithm.String()
		l, err := New(client, limit, &Options{Name: name, Timeout: 20 * time.Second})
		require.NoError(t, err)
		debt := func(want int) {
			t.Helper()
			d, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.Equal(t, want, d.Debt, name)
			if d, err = l.Take(t.Context(), "k", 1); want > 0 {
				require.NoError(t, err)
				assert.Equal(t, want, d.Debt, "%s: a denial", name)
			}
		}
		debt(0) // this spends 1, too
		require.NoError(t, l.Adjust(t.Context(), "k", 16))
		debt(7)
		require.NoError(t, l.Adjust(t.Context(), "k", 25))
		debt(32)
		require.NoError(t, l.Adjust(t.Context(), "k", -30))
		debt(2)
		require.NoError(t, l.Adjust(t.Context(), "k", -3))
		debt(0)
	}
}

// Without a debt a log's usual script decides, and with a debt the general one.
func TestALogWithoutADebtHasNone(t *testing.T) {
	l, err := New(startServer(t).client(), ratelimit.SlidingLog(ratelimit.PerHour(3)), &Options{Name: "log", Timeout: 20 * time.Second})
	require.NoError(t, err)
	for range 5 {
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Zero(t, d.Debt)
	}
}
