package failover_test

import (
	"context"
	"testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// BenchmarkTake measures failover's cost for a decision in memory: with a goroutine and
// a timer for each call to the primary, without them, and while the breaker is open.
func BenchmarkTake(b *testing.B) {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1<<30), 1<<30)
	local := newLocal(b, limit)
	down := newStore(b, limit)
	down.fail(func(context.Context) error { return errDown })
	open := over(b, down, local, failover.Options{Failures: 1, OpenFor: 1 << 40})
	take(b, open, 1)
	for _, row := range []struct {
		name    string
		limiter ratelimit.Limiter[string]
	}{
		{"none", local},
		{"timeout", over(b, newLocal(b, limit), local, failover.Options{})},
		{"inline", over(b, newLocal(b, limit), local, failover.Options{Timeout: -1})},
		{"open", open},
	} {
		b.Run("failover="+row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = row.limiter.Take(context.Background(), "k", 1)
			}
		})
	}
}
