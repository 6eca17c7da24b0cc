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
		"log100":  ratelimit.SlidingLog(ratelimit.Per(100, 4*time.Hour)),
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
					r, err := l.Reserve(context.WithoutCancel(context.Background()), "k", limit.Capacity(), 1<<62)
					require.NoError(b, err)
					require.True(b, r.Allowed)
				}
				serverTime(b, client, func(int) { l.Allow("k", 1) })
			})
		}
	}
}

// BenchmarkAmongLooseBookings measures the server's time for a Take of a key with bookings from before a change of the
// limit. After a raise the Take is allowed before them, and under a lowered limit it is denied until the next one is due.
func BenchmarkAmongLooseBookings(b *testing.B) {
	client := startServer(b).client()
	limits := map[string]func(n int) ratelimit.Limit{
		"token":   func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(n), n) },
		"fixed":   func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(n)) },
		"counter": func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerHour(n)) },
		"log":     func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerHour(n)) },
	}
	for name, limit := range limits {
		for _, bookings := range []int{0, 16, 600, 1000} {
			for _, mix := range []string{"raised", "lowered", "allowed"} {
				if name == "log" && mix == "allowed" {
					continue // this limit has no room for so many bookings
				}
				b.Run(fmt.Sprintf("algorithm=%s/bookings=%d/mix=%s", name, bookings, mix), func(b *testing.B) {
					ctx := context.Background()
					l, err := New(client, limit(4), &Options{Name: fmt.Sprint(name, bookings, mix), Timeout: 10 * time.Second})
					require.NoError(b, err)
					require.NoError(b, l.Reset(ctx, "k"))
					require.NoError(b, l.Adjust(ctx, "k", 4))
					for range bookings {
						r, err := l.Reserve(ctx, "k", 4, 1<<62)
						require.NoError(b, err)
						require.True(b, r.Allowed)
					}
					require.NoError(b, l.SetLimit(limit(map[string]int{"raised": 8, "lowered": 3, "allowed": 100_000}[mix])))
					for mix == "raised" && l.Allow("k", 1) {
					}
					require.Equal(b, mix == "allowed", l.Allow("k", 1))
					serverTime(b, client, func(int) { l.Allow("k", 1) })
				})
			}
		}
	}
}

// BenchmarkFirstDenialAmongBookings measures the server's time for the first denied Take after each change of the limit.
func BenchmarkFirstDenialAmongBookings(b *testing.B) {
	client := startServer(b).client()
	for name, limit := range map[string]func(n int) ratelimit.Limit{
		"token":   func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(n), n) },
		"fixed":   func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(n)) },
		"counter": func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerHour(n)) },
		"log":     func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerHour(n)) },
	} {
		for _, bookings := range []int{0, 16, 100, 600, 1000} {
			for mix, figures := range map[string][2]int{"raised": {8, 9}, "lowered": {3, 2}} {
				b.Run(fmt.Sprintf("algorithm=%s/bookings=%d/mix=%s", name, bookings, mix), func(b *testing.B) {
					ctx := context.Background()
					l, err := New(client, limit(4), &Options{Name: fmt.Sprint("first", name, bookings, mix), Timeout: 10 * time.Second})
					require.NoError(b, err)
					require.NoError(b, l.Reset(ctx, "k"))
					require.NoError(b, l.Adjust(ctx, "k", 4))
					for range bookings {
						r, err := l.Reserve(ctx, "k", 4, 1<<62)
						require.NoError(b, err)
						require.True(b, r.Allowed)
					}
					for i := range figures {
						require.NoError(b, l.SetLimit(limit(figures[i])))
						for l.Allow("k", 1) {
						}
					}
					serverTime(b, client, func(i int) {
						require.NoError(b, l.SetLimit(limit(figures[i%2])))
						l.Allow("k", 1)
					})
				})
			}
		}
	}
}

// BenchmarkDeniedByTurns measures the server's time for a denied Take
// under several limits in turn. The key is stored under the first.
func BenchmarkDeniedByTurns(b *testing.B) {
	client := startServer(b).client()
	for name, limit := range map[string]func(n int) ratelimit.Limit{
		"token":   func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(n), n) },
		"leaky":   func(n int) ratelimit.Limit { return ratelimit.LeakyBucket(ratelimit.PerHour(n), n) },
		"fixed":   func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(n)) },
		"counter": func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerHour(n)) },
		"log":     func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerHour(n)) },
	} {
		for _, n := range []int{1, 2, 3} {
			b.Run(fmt.Sprintf("algorithm=%s/limits=%d", name, n), func(b *testing.B) {
				var limiters []*Limiter
				for i := range n {
					l, err := New(client, limit(4-i), &Options{Name: fmt.Sprint(name, n), Timeout: 10 * time.Second})
					require.NoError(b, err)
					if i == 0 {
						require.NoError(b, l.Reset(context.Background(), "k"))
						require.NoError(b, l.Adjust(context.Background(), "k", 4))
					}
					require.False(b, l.Allow("k", 1))
					limiters = append(limiters, l)
				}
				serverTime(b, client, func(i int) { limiters[i%n].Allow("k", 1) })
			})
		}
	}
}
