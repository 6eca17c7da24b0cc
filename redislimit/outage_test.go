package redislimit

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// If a server refuses the client, the stand-in decides, and the error says what to change.
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
