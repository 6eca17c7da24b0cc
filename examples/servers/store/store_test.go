package store

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/redislimit"
)

// The embedded server runs redislimit's scripts with known answers: each algorithm grants its capacity, denies, and regains.
func TestTheEmbeddedServerRunsTheScripts(t *testing.T) {
	s, err := Start(true)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	const per = 2 * time.Second
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(5, per), 5),
		ratelimit.LeakyBucket(ratelimit.Per(5, time.Minute), 5), // so slow that its queue stays full on any machine
		ratelimit.FixedWindow(ratelimit.Per(5, per)),
		ratelimit.SlidingLog(ratelimit.Per(5, per)),
		ratelimit.SlidingCounter(ratelimit.Per(5, per)),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			l, err := redislimit.New(client, limit, &redislimit.Options{Name: limit.String(), Timeout: 10 * time.Second})
			require.NoError(t, err)
			key := "k"
			var d ratelimit.Decision
			for began := time.Now(); ; began = time.Now() {
				d, err = l.Take(t.Context(), key, 5)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				require.Zero(t, d.Remaining)
				d, err = l.Take(t.Context(), key, 5)
				require.NoError(t, err)
				if !d.Allowed || time.Since(began) < per {
					break
				}
				key += "k" // the machine had stopped until everything was regained: try another key
			}
			require.False(t, d.Allowed)
			require.Positive(t, d.RetryAfter)
			require.LessOrEqual(t, d.RetryAfter, 2*limit.Rate.Per)
			if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
				require.ErrorIs(t, l.Wait(t.Context(), key, 1), ratelimit.ErrLimited, "its queue is full")
			} else {
				require.NoError(t, l.Wait(t.Context(), key, 1))
			}
			r, err := l.Reserve(t.Context(), "other", 4, 0)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.NoError(t, r.Settle(1))
		})
	}
}

func TestAfterARevivalItIsEmpty(t *testing.T) {
	s, err := Start(true)
	require.NoError(t, err)
	defer s.Close()
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer client.Close()
	l, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerDay(1), 5).Named("x"), &redislimit.Options{Timeout: 10 * time.Second})
	require.NoError(t, err)
	_, err = l.Take(t.Context(), "k", 5)
	require.NoError(t, err)
	require.NoError(t, s.Kill())
	require.NotEmpty(t, s.Addr(), "it keeps its address")
	_, err = l.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.NoError(t, s.Revive())
	d, err := l.Take(t.Context(), "k", 5)
	require.NoError(t, err)
	require.True(t, d.Allowed)
}
