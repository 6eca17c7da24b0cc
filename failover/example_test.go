package failover_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// unreachable stands for redislimit.New while Redis is down.
type unreachable struct{}

func (unreachable) Allow(string, int) bool { return false }

func (unreachable) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, fmt.Errorf("dial tcp: connection refused: %w", ratelimit.ErrUnavailable)
}

func (u unreachable) Reserve(ctx context.Context, key string, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	d, err := u.Take(ctx, key, cost)
	return ratelimit.NewReservation(d, nil), err
}

// While the shared store is down, each of eight nodes enforces an eighth of the limit.
func Example() {
	local := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(100), 3), nil))
	limiter, err := failover.New[string](unreachable{}, local, &failover.Options{
		Logger: slog.New(slog.DiscardHandler),
		OnStateChange: func(from, to failover.State) {
			fmt.Println("breaker:", from, "to", to)
		},
	})
	if err != nil {
		panic(err)
	}
	for range 6 {
		d, err := limiter.Take(context.Background(), "user:42", 1)
		fmt.Println(d.Allowed, d.Remaining, "degraded:", d.Degraded, "error:", err)
	}
	// Output:
	// true 2 degraded: true error: <nil>
	// true 1 degraded: true error: <nil>
	// true 0 degraded: true error: <nil>
	// false 0 degraded: true error: <nil>
	// breaker: closed to open
	// false 0 degraded: true error: <nil>
	// false 0 degraded: true error: <nil>
}

func ExampleDenyAll() {
	limiter, err := failover.New(unreachable{}, failover.DenyAll[string](), &failover.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	d, err := limiter.Take(context.Background(), "login:alice", 1)
	fmt.Println(d.Allowed, d.RetryAfter, err)
	// Output: false 1s <nil>
}

func ExampleAllowAll() {
	limiter, err := failover.New(unreachable{}, failover.AllowAll[string](), &failover.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	fmt.Println(limiter.Allow("GET /", 1), limiter.Stats().Instead)
	// Output: true 1
}

// While Redis is down, each of eight processes enforces an eighth of the limit alone.
func ExampleShare() {
	fmt.Println(failover.Share(ratelimit.TokenBucket(ratelimit.PerSecond(800), 100), 8))
	fmt.Println(failover.Share(ratelimit.TokenBucket(ratelimit.PerSecond(5), 5), 8))
	fmt.Println(failover.Share(ratelimit.FixedWindow(ratelimit.PerMinute(100)), 8))
	// Output:
	// token-bucket 800/8s burst 12
	// token-bucket 5/8s burst 1
	// fixed-window 13/m
}
