package redislimit

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// If a server refuses the client, the stand-in decides, and the error names the cause.
func TestAServerThatRefusesTheClientIsAnOutage(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	require.NoError(t, s.client().Do(t.Context(), "ACL", "SETUSER", "narrow", "on", ">secret", "~ratelimit:*", "+@all", "-evalsha", "-eval", "-evalsha_ro", "-eval_ro").Err())
	require.NoError(t, s.client().Do(t.Context(), "ACL", "SETUSER", "elsewhere", "on", ">secret", "~other:*", "+@all").Err())
	for name, test := range map[string]struct {
		change func(*redis.Options)
		text   string
	}{
		"a wrong password":   {func(o *redis.Options) { o.Username, o.Password = "narrow", "wrong" }, "WRONGPASS"},
		"a missing command":  {func(o *redis.Options) { o.Username, o.Password = "narrow", "secret" }, "the user's ACL lacks +eval"},
		"other keys":         {func(o *redis.Options) { o.Username, o.Password = "elsewhere", "secret" }, "~ratelimit:*"},
		"a missing database": {func(o *redis.Options) { o.DB = 99 }, "check DB of the client"},
	} {
		t.Run(name, func(t *testing.T) {
			o := *s.client().Options()
			test.change(&o)
			client := redis.NewClient(&o)
			defer client.Close()
			l, err := New(client, perMinute(5).Named("n"), &Options{Timeout: 10 * time.Second})
			require.NoError(t, err)
			_, err = l.Take(t.Context(), "k", 1)
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			require.NotErrorIs(t, err, ratelimit.ErrUnanswered)
			require.ErrorContains(t, err, test.text)
			both, err := failover.New[string](l, ratelimit.Must(ratelimit.New[string](perMinute(2), nil)), nil)
			require.NoError(t, err)
			for i := range 4 {
				assert.Equal(t, i < 2, both.Allow("k", 1), "call %d", i)
			}
		})
	}
}

// Callers wait in line for a stack while its server hangs. They go on in the line of the stand-in, and
// return when the server answers.
func TestCallersInLineOutlastAServerThatHangs(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	key := func(k string) (string, error) { return k, nil }
	on := func(limit ratelimit.Limit) ratelimit.Limiter[string] {
		return ratelimit.Must(New(s.client(), limit, &Options{Timeout: 3 * time.Second}))
	}
	shared := ratelimit.Must(ratelimit.All(
		ratelimit.By(on(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000).Named("all")), func(string) (string, error) { return "", nil }),
		ratelimit.By(on(ratelimit.TokenBucket(ratelimit.PerSecond(20), 1).Named("each")), key)))
	local := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil))
	l := ratelimit.Must(failover.New[string](shared, local, &failover.Options{Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}))
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { assert.NoError(t, l.Wait(t.Context(), "k", 1)) })
	}
	require.Eventually(t, func() bool { return l.Stats().Primary > 3 }, time.Minute, time.Millisecond)
	require.NoError(t, s.Pause())
	require.Eventually(t, func() bool { return local.Stats().Waiting > 20 }, time.Minute, time.Millisecond)
	require.NoError(t, s.Resume())
	require.Eventually(t, func() bool {
		d, err := l.Take(t.Context(), "another", 0)
		return err == nil && !d.Degraded
	}, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return local.Stats().Waiting == 0 }, time.Minute, time.Millisecond)
	wg.Wait()
	stats := l.Stats()
	require.Positive(t, stats.Instead)
	require.Greater(t, stats.Primary, uint64(3))
}
