package policyredis_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// Calls wait at 6/m. Then a set raises the limit to 20/s. Each set has its own limiters on Redis, and so lines of its own:
// the calls change to those in the order of their arrival, and only the first of a line calls Redis.
func TestCallsInLineOnRedisFollowASetThatComesIntoForce(t *testing.T) {
	const calls = 40
	client := local(t)
	var count trips
	client.AddHook(&count)
	set := func(limit string) string {
		return "rules: [{name: api, key: user, limit: " + limit + "}, {name: all, limit: token-bucket 100000/s burst 100000}]"
	}
	p := over(t, client, set("token-bucket 6/m burst 1"), policyredis.Options{}, policy.Options{})
	ann := policy.Attributes{"user": "ann"}
	require.True(t, p.Allow(ann, 1))
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		served []int
	)
	for i := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
			defer cancel()
			if err := p.Wait(ctx, ann, 1); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			served = append(served, i)
		})
		time.Sleep(2 * time.Millisecond) // so that the calls arrive in this order: only the first few need an answer from Redis
	}
	require.Empty(t, served)
	before := count.n.Load()
	require.NoError(t, p.Update(ratelimit.Must(policy.Parse([]byte(set("token-bucket 20/s burst 1"))))))
	wg.Wait()
	for place, call := range served {
		require.InDelta(t, call, place, 3, "first come, first served, but for calls that came at the same time: %v", served)
	}
	require.Less(t, count.n.Load()-before, int64(2*calls+calls/2), "round trips")
}
