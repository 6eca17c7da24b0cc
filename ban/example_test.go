package ban_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func ExampleNew() {
	ctx := context.Background()
	clock := new(ratelimittest.Clock)
	opts := &ratelimit.Options[string]{Clock: clock}
	requests := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(2)), opts))
	strikes := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(3)), opts))
	bans := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)).Named("ban"), opts))
	limiter, err := ban.New(requests, strikes, bans)
	if err != nil {
		panic(err)
	}
	for range 5 {
		d, _ := limiter.Take(ctx, "198.51.100.7", 1)
		fmt.Println(d.Allowed, d.RetryAfter)
	}
	clock.Advance(10 * time.Minute)
	for key, d := range bans.All() {
		if !d.Allowed {
			fmt.Println(key, "is banned for another", d.RetryAfter)
		}
	}
	fmt.Println(limiter.Lift(ctx, "198.51.100.7"), limiter.Allow("198.51.100.7", 1))
	fmt.Println("bans:", limiter.Stats().Begun)
	// Output:
	// true 0s
	// true 0s
	// false 1m0s
	// false 1m0s
	// false 1h0m0s
	// 198.51.100.7 is banned for another 50m0s
	// <nil> true
	// bans: 1
}

// A login that bans an account for an hour after three wrong passwords within 15 minutes, and has no other limit.
func ExampleLimiter_Strike() {
	ctx := context.Background()
	strikes := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.Per(3, 15*time.Minute)), nil))
	bans := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)), nil))
	logins, err := ban.New(nil, strikes, bans)
	if err != nil {
		panic(err)
	}
	for range 4 {
		if !logins.Allow("ann", 1) {
			fmt.Println("ann is banned")
			continue
		}
		fmt.Println("wrong password:", logins.Strike(ctx, "ann", 1))
	}
	// Output:
	// wrong password: <nil>
	// wrong password: <nil>
	// wrong password: <nil>
	// ann is banned
}
