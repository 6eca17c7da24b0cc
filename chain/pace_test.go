package chain_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
)

// The layer counts one unit for each call, whatever its cost. The line goes
// on at the layer's rate, and no call is refused because of earlier calls' costs.
func TestALineOfAChainGoesOnAtTheRateOfALayerWithItsOwnCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := ratelimit.By(keyed(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1)), func(k string) (string, error) { return k, nil })
		calls.Cost = func(string) int { return 1 }
		tokens := ratelimit.By(keyed(ratelimit.TokenBucket(ratelimit.PerSecond(10_000_000), 10_000_000)), func(k string) (string, error) { return k, nil })
		c := chainOf(t, ratelimit.Must(ratelimit.All(calls, tokens)), keyed(ratelimit.TokenBucket(ratelimit.PerSecond(10_000_000), 10_000_000)))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { assert.NoError(t, c.Wait(ctx, "k", 4000)) })
			synctest.Wait()
		}
		all.Wait()
		assert.Less(t, time.Since(begin), 2*time.Second)
	})
}

// After a ban, all calls waiting for its end pass. The ban's limit is not the rate at which they go on.
func TestTheEndOfABanLetsTheWholeLineOfAChainPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bans := keyed(ratelimit.FixedWindow(ratelimit.Per(1, 2*time.Hour)))
		banned := ratelimit.Must(ban.New[string](keyed(ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)), keyed(ratelimit.FixedWindow(ratelimit.PerHour(3))), bans))
		c := chainOf(t, banned, keyed(ratelimit.TokenBucket(ratelimit.PerSecond(100), 100)))
		require.True(t, bans.Allow("k", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
		defer cancel()
		begin := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { assert.NoError(t, c.Wait(ctx, "k", 1)) })
			synctest.Wait()
		}
		all.Wait()
		assert.Equal(t, 2*time.Hour, time.Since(begin).Truncate(time.Minute))
	})
}
