package redislimit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// BenchmarkDeniedAmongBookings measures the server's time for a denied Take of a key with bookings.
func BenchmarkDeniedAmongBookings(b *testing.B) {
	client := startServer(b).client()
	limits := map[string]ratelimit.Limit{
		"token":   ratelimit.TokenBucket(ratelimit.PerHour(1), 4),
		"fixed":   ratelimit.FixedWindow(ratelimit.Per(4, 4*time.Hour)),
		"counter": ratelimit.SlidingCounter(ratelimit.Per(4, 4*time.Hour)),
		"log":     ratelimit.SlidingLog(ratelimit.Per(4, 4*time.Hour)),
		"leaky":   ratelimit.LeakyBucket(ratelimit.PerHour(1), 2000),
	}
	for name, limit := range limits {
		for _, bookings := range []int{0, 1, 16, 80, 1000} {
			b.Run(fmt.Sprintf("algorithm=%s/bookings=%d", name, bookings), func(b *testing.B) {
				l, err := New(client, limit, &Options{Name: fmt.Sprint(name, bookings), Timeout: 10 * time.Second})
				require.NoError(b, err)
				require.NoError(b, l.Reset(context.Background(), "k"))
				require.NoError(b, l.Adjust(context.Background(), "k", limit.Capacity()))
				for range bookings {
					if name == "leaky" {
						break
					}
					r, err := l.Reserve(context.WithoutCancel(context.Background()), "k", 4, 1<<62)
					require.NoError(b, err)
					require.True(b, r.Allowed)
				}
				serverTime(b, client, func(int) { l.Allow("k", 1) })
			})
		}
	}
}
