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
	strikes := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog(ratelimit.PerHour(3)), opts))
	bans := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)).Named("ban"), opts))
	limiter, err := ban.New(requests, strikes, bans)
	if err != nil {
		panic(err)
	}
	for range 3 {
		allowed, denied := 0, 0
		var last ratelimit.Decision
		for range 10 { // for example a page's parts, all at once
			if last, _ = limiter.Take(ctx, "198.51.100.7", 1); last.Allowed {
				allowed++
			} else {
				denied++
			}
		}
		fmt.Println(allowed, "allowed,", denied, "denied, the next in", last.RetryAfter)
		clock.Advance(time.Minute)
	}
	for key, d := range bans.All() {
		if !d.Allowed {
			fmt.Println(key, "is banned for another", d.RetryAfter)
		}
	}
	fmt.Println(limiter.Reset(ctx, "198.51.100.7"), limiter.Allow("198.51.100.7", 1))
	fmt.Println("bans:", limiter.Stats().Begun)
	// Output:
	// 2 allowed, 8 denied, the next in 1m0s
	// 2 allowed, 8 denied, the next in 1m0s
	// 2 allowed, 8 denied, the next in 1h0m0s
	// 198.51.100.7 is banned for another 59m0s
	// <nil> true
	// bans: 1
}

// A client that comes back is banned for a minute, then for five, then for an hour.
func ExampleNewGrowing() {
	ctx := context.Background()
	clock := new(ratelimittest.Clock)
	limiterOf := func(limit ratelimit.Limit) *ratelimit.Keyed[string] {
		return ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
	}
	limiter, err := ban.NewGrowing(
		limiterOf(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20)),
		limiterOf(ratelimit.SlidingLog(ratelimit.PerMinute(3))),
		limiterOf(ratelimit.SlidingLog(ratelimit.Per(9, 24*time.Hour))), // the number of bans in the last 24 hours
		limiterOf(ratelimit.FixedWindow(ratelimit.Per(1, time.Minute)).Named("ban-1m")),
		limiterOf(ratelimit.FixedWindow(ratelimit.Per(1, 5*time.Minute)).Named("ban-5m")),
		limiterOf(ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)).Named("ban-1h")),
	)
	if err != nil {
		panic(err)
	}
	for range 4 {
		limiter.Strike(ctx, "198.51.100.7", 3)
		d, _ := limiter.Take(ctx, "198.51.100.7", 1)
		fmt.Println(d.Limit.Name, d.RetryAfter)
		clock.Advance(d.RetryAfter)
	}
	clock.Advance(24 * time.Hour) // by now, repeats has forgotten the bans
	limiter.Strike(ctx, "198.51.100.7", 3)
	d, _ := limiter.Take(ctx, "198.51.100.7", 1)
	fmt.Println(d.Limit.Name, d.RetryAfter)
	// Output:
	// ban-1m 1m0s
	// ban-5m 5m0s
	// ban-1h 1h0m0s
	// ban-1h 1h0m0s
	// ban-1m 1m0s
}

// A login bans an account for an hour after three wrong passwords within 15 minutes, and has no other limit.
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
