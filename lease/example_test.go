package lease_test

import (
	"context"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// The limiter shared by a fleet is usually on a store: for example, one of redislimit.New.
func Example() {
	shared := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(100), 1000), nil))
	limiter, err := lease.New[string](shared, &lease.Options[string]{MaxBatch: 50})
	if err != nil {
		panic(err)
	}
	for range 500 {
		limiter.Allow("tenant:42", 1)
	}
	if err := limiter.Flush(context.Background()); err != nil { // on shutdown
		panic(err)
	}
	left, err := shared.Peek(context.Background(), "tenant:42", 1)
	if err != nil {
		panic(err)
	}
	st := limiter.Stats()
	fmt.Println("left of the shared budget:", left.Remaining)
	fmt.Println("fewer than 50 round trips for", st.Decisions, "decisions:", st.RoundTrips < 50)
	// Output:
	// left of the shared budget: 500
	// fewer than 50 round trips for 500 decisions: true
}

func ExampleLimiter_Reserve() {
	shared := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1), 10_000), nil))
	limiter, err := lease.New[string](shared, &lease.Options[string]{MaxBatch: 5000})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	r, err := limiter.Reserve(ctx, "tenant:42", 800, 0) // an estimate
	if err != nil || !r.Allowed {
		panic("not now")
	}
	if err := r.Settle(650); err != nil { // the real cost
		panic(err)
	}
	left, err := shared.Peek(context.Background(), "tenant:42", 1)
	if err != nil {
		panic(err)
	}
	fmt.Println(left.Remaining)
	// Output: 9350
}
