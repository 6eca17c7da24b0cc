package policyredis_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// Callers of a server that pauses leave at random moments. Each key has its own cost: a key whose
// spending is no multiple of that was charged for a request of another key.
func TestACallerThatLeavesChargesNoOther(t *testing.T) {
	store := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: store.Addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { client.Close() })
	const text = `{rules: [{name: one, key: user, limit: fixed-window 1000000/d}]}`
	policies := func(timeout time.Duration) *policy.Policies {
		p, err := policy.New(parsed(t, text), &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: timeout})})
		require.NoError(t, err)
		return p
	}
	hasty, patient := policies(3*time.Millisecond), policies(time.Minute)
	costs := []int{3, 5, 7, 11, 13, 17, 19, 23}
	var charged [8]atomic.Int64 // perhaps
	end := time.Now().Add(300 * time.Millisecond)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for time.Now().Before(end) {
				i := rand.IntN(len(costs))
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(6*time.Millisecond))
				d, err := hasty.Take(ctx, policy.Attributes{"user": strconv.Itoa(i)}, costs[i])
				cancel()
				if d.Allowed || errors.Is(err, ratelimit.ErrUnanswered) {
					charged[i].Add(int64(costs[i]))
				}
			}
		})
	}
	for time.Now().Before(end) {
		assert.NoError(t, store.Pause())
		time.Sleep(rand.N(5 * time.Millisecond))
		assert.NoError(t, store.Resume())
		time.Sleep(rand.N(10 * time.Millisecond))
	}
	wg.Wait()
	time.Sleep(50 * time.Millisecond) // commands that are still on their way arrive, too
	for i, cost := range costs {
		d, err := patient.Take(t.Context(), policy.Attributes{"user": strconv.Itoa(i)}, 1)
		require.NoError(t, err)
		spent := 1_000_000 - d.Remaining - 1
		assert.Zero(t, spent%cost, "key %d of cost %d has spent %d", i, cost, spent)
		assert.LessOrEqual(t, int64(spent), charged[i].Load(), "key %d", i)
	}
}
