package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

func TestEachCallBringsItsRate(t *testing.T) {
	client := startServer(t).client()
	l := On(client)
	require.Eventually(t, func() bool {
		d, _ := l.Take(t.Context(), "warm", 1, ratelimit.PerHour(1000))
		return d.Allowed
	}, 20*time.Second, 10*time.Millisecond)
	d, err := l.Take(t.Context(), "k", 6, ratelimit.PerHour(10))
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 4, d.Remaining)
	d, err = l.Take(t.Context(), "k", 5, ratelimit.PerHour(10))
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	d, err = l.Take(t.Context(), "k", 5, ratelimit.PerHour(20))
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 9, d.Remaining, "what was spent carries over")
	_, err = l.Take(t.Context(), "k", 21, ratelimit.PerHour(20))
	assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	_, err = l.Take(t.Context(), "k", 1, ratelimit.Rate{})
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = On(nil).Take(t.Context(), "k", 1, ratelimit.PerHour(20))
	assert.ErrorContains(t, err, "client")
}
