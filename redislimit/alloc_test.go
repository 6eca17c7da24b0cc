//go:build !race

package redislimit

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// TestAStackOnRedisAllocatesLittle measures a stack of three layers, leased or not.
func TestAStackOnRedisAllocatesLittle(t *testing.T) {
	testsize.Extra(t) // scripts/test compiles without inlining, which causes allocations
	client := startServer(t).client()
	for name, maxBatch := range map[string]int{"none-leased": 0, "one-leased": 1 << 20} {
		users := newOn(t, client, perMinute(1<<30), name+"-users", Options{})
		routes := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerHour(1<<30)), name+"-routes", Options{})
		total := newOn(t, client, perMinute(1<<30), name+"-total", Options{MaxBatch: maxBatch})
		stack, err := ratelimit.All(ratelimit.By(users, identity), ratelimit.By(routes, identity), ratelimit.Global[string](total))
		require.NoError(t, err)
		ctx := context.Background()
		for range 100 {
			d, err := stack.Take(ctx, "k", 1)
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}
		n := math.Inf(1)
		for range 10 { // a collection empties the pools, and the client's goroutines allocate, too
			n = min(n, testing.AllocsPerRun(100, func() { _, _ = stack.Take(ctx, "k", 1) }))
		}
		assert.LessOrEqual(t, n, 24.0, name)
		require.NoError(t, total.Flush(ctx))
	}
}
