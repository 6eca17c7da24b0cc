package chain_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func ExampleNew() {
	clock := new(ratelimittest.Clock)
	local := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(10), 10).Named("local"),
		&ratelimit.Options[string]{Clock: clock}))
	// In a program, this would be a limiter on a server shared by several processes.
	remote := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(12)).Named("remote"),
		&ratelimit.Options[string]{Clock: clock}))
	limiter, err := chain.New[string](local, remote)
	if err != nil {
		panic(err)
	}
	fmt.Println(limiter.Allow("ann", 10))
	clock.Advance(time.Second)
	d, _ := limiter.Take(context.Background(), "ann", 3)
	fmt.Println(d.Allowed, d.Limit.Name, d.Remaining, d.RetryAfter)
	fmt.Println(local.Allow("ann", 10)) // the denial has given the charge to local back
	fmt.Println(limiter.Stats().FailedGiveBacks)
	// Output:
	// true
	// false remote 2 59s
	// true
	// 0
}
