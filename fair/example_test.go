package fair_test

import (
	"context"
	"fmt"
	"log"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func ExampleNew() {
	weights := map[string]int{"gold": 3}
	clock := new(ratelimittest.Clock) // a program leaves it out
	limiter, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), &fair.Options[string]{
		Weight: func(tenant string) int { return weights[tenant] },
		Clock:  clock,
	})
	if err != nil {
		log.Fatal(err)
	}
	spent := 0
	for limiter.Allow("free", 100) {
		spent += 100
	}
	fmt.Println("alone:", spent)

	ctx := context.Background()
	d, err := limiter.Take(ctx, "gold", 100)
	fmt.Println("another one:", d.Allowed, err)
	d, err = limiter.Take(ctx, "free", 100)
	fmt.Println("the first again:", d.Allowed, d.RetryAfter, err)
	// Output:
	// alone: 800
	// another one: true <nil>
	// the first again: false 3.2s <nil>
}
