package lease_test

import (
	"context"
	"testing"

	"github.com/weir-go/ratelimit"
)

// BenchmarkAllow compares a decision from a batch with one in memory. Both limiters have the key and enough budget.
//
//	go test -run '^$' -bench . -count 10 ./lease | benchstat -col /limiter -
func BenchmarkAllow(b *testing.B) {
	inMemory := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1<<30), 1<<30), nil))
	leased := held(b, "user:42")
	for _, row := range []struct {
		name    string
		limiter ratelimit.Limiter[string]
	}{{"memory", inMemory}, {"lease", leased}} {
		b.Run("run=serial/limiter="+row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				row.limiter.Allow("user:42", 1)
			}
		})
		b.Run("run=parallel/limiter="+row.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					row.limiter.Allow("user:42", 1)
				}
			})
		})
		b.Run("run=take/limiter="+row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = row.limiter.Take(context.Background(), "user:42", 1)
			}
		})
	}
}
