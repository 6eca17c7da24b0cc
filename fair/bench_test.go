package fair_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
)

// BenchmarkFair compares decisions by this package with those by one bucket per key.
func BenchmarkFair(b *testing.B) {
	const generous = 1 << 30
	peers := map[string]func(limit ratelimit.Limit) ratelimit.Limiter[string]{
		"fair": func(limit ratelimit.Limit) ratelimit.Limiter[string] {
			return ratelimit.Must(fair.New[string](limit, nil))
		},
		"keyed": func(limit ratelimit.Limit) ratelimit.Limiter[string] {
			return ratelimit.Must(ratelimit.New[string](limit, nil))
		},
	}
	for _, name := range []string{"keyed", "fair"} {
		for _, tenants := range []int{1, 10_000} {
			for _, mix := range []string{"allow", "deny"} {
				keys := make([]string, tenants)
				for i := range keys {
					keys[i] = "tenant:" + strconv.Itoa(i)
				}
				limit := ratelimit.TokenBucket(ratelimit.PerSecond(generous), generous)
				if mix == "deny" {
					limit = ratelimit.TokenBucket(ratelimit.PerDay(1), tenants)
				}
				b.Run("limiter="+name+"/tenants="+strconv.Itoa(tenants)+"/mix="+mix, func(b *testing.B) {
					l := peers[name](limit)
					if mix == "deny" {
						for _, key := range keys {
							for range tenants {
								if !l.Allow(key, 1) {
									break
								}
							}
						}
					}
					b.ReportAllocs()
					i := 0
					for b.Loop() {
						l.Allow(keys[i], 1)
						if i++; i == tenants {
							i = 0
						}
					}
				})
				b.Run("limiter="+name+"/take/tenants="+strconv.Itoa(tenants)+"/mix="+mix, func(b *testing.B) {
					l := peers[name](limit)
					b.ReportAllocs()
					i := 0
					for b.Loop() {
						_, _ = l.Take(context.Background(), keys[i], 1)
						if i++; i == tenants {
							i = 0
						}
					}
				})
			}
		}
	}
}
