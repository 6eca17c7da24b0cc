package policyredis_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// trips is a hook that counts round trips.
type trips struct{ n atomic.Int64 }

func (h *trips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.n.Add(1); return next(ctx, cmd) }
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h.n.Add(1); return next(ctx, cmds) }
}

// A denial is charged by one more call of the server, whose answer has the figures. They are those of a look.
func TestADenialIsChargedInOneMoreRoundTrip(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ReadTimeout: time.Minute})
	defer client.Close()
	for _, c := range []struct {
		limit string
		trips int64
		costs []int // 90 of 100 are spent before them
	}{
		{"token-bucket 100/h burst 100", 2, []int{20, 60, 35}},
		{"fixed-window 100/h", 2, []int{20, 60, 35}},
		{"calendar 100/month UTC", 3, []int{20}}, // months differ in length
		{"sliding-log 100/h", 3, []int{20, 60, 35}},
	} {
		t.Run(c.limit, func(t *testing.T) {
			count := new(trips)
			p, err := policy.New(parsed(t, "rules: [{name: tokens, key: user, limit: "+c.limit+", charge: always}]"), &policy.Options{
				Engine: policyredis.New(client, &policyredis.Options{Prefix: c.limit + ":", Timeout: time.Minute, Hooks: []redis.Hook{count}}),
			})
			require.NoError(t, err)
			ann := policy.Attributes{"user": "ann"}
			_, err = p.Take(t.Context(), ann, 90)
			require.NoError(t, err)
			_, err = p.Take(t.Context(), policy.Attributes{"user": "scripts"}, 90)
			require.NoError(t, err)
			for range 2 { // the first loads the script
				_, err = p.Take(t.Context(), policy.Attributes{"user": "scripts"}, 20)
				require.NoError(t, err)
			}
			for _, cost := range c.costs {
				before := count.n.Load()
				d, err := p.Take(t.Context(), ann, cost)
				require.NoError(t, err)
				require.False(t, d.Allowed)
				assert.Equal(t, c.trips, count.n.Load()-before)
				now, err := p.Peek(t.Context(), policy.Subject{Rule: "tokens", Key: []string{"ann"}}, cost)
				require.NoError(t, err)
				assert.Equal(t, now.Remaining, d.Remaining)
				assert.Equal(t, now.Debt, d.Debt)
				assert.InDelta(t, now.ResetAfter, d.ResetAfter, float64(time.Minute))
				assert.InDelta(t, now.RetryAfter, d.RetryAfter, float64(time.Minute))
				assert.InDelta(t, now.NextAfter, d.NextAfter, float64(time.Minute))
			}
		})
	}
}
