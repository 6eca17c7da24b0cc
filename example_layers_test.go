package ratelimit_test

import (
	"context"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func ExampleShadow() {
	type request struct{ User string }
	user := func(r request) (string, error) { return r.User, nil }
	clock := new(ratelimittest.Clock)
	enforced := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(100)),
		&ratelimit.Options[string]{Clock: clock}))
	stricter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(2)), &ratelimit.Options[string]{
		Clock: clock,
		OnDecision: func(e ratelimit.Event[string]) {
			fmt.Println("the stricter limit allows it:", e.Decision.Allowed)
		},
	}))
	limiter, err := ratelimit.All(
		ratelimit.By(enforced, user),
		ratelimit.Shadow(ratelimit.By(stricter, user)),
	)
	if err != nil {
		panic(err)
	}
	for range 3 {
		fmt.Println("allowed:", limiter.Allow(request{"ann"}, 1))
	}
	// Output:
	// the stricter limit allows it: true
	// allowed: true
	// the stricter limit allows it: true
	// allowed: true
	// the stricter limit allows it: false
	// allowed: true
}

func ExampleWithLimit() {
	type request struct{ User, Plan string }
	plans := map[string]ratelimit.Limit{
		"pro": ratelimit.FixedWindow(ratelimit.PerHour(1000)).Named("pro"),
	}
	free := ratelimit.FixedWindow(ratelimit.PerHour(10)).Named("free")
	users := ratelimit.Must(ratelimit.New(free, &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	limiter, err := ratelimit.All(ratelimit.WithLimit(
		ratelimit.By(users, func(r request) (string, error) { return r.User, nil }),
		func(r request) ratelimit.Limit { return plans[r.Plan] }, // zero: the limiter's, which is free
	))
	if err != nil {
		panic(err)
	}
	for _, r := range []request{{"ann", "trial"}, {"ann", "pro"}} { // ann upgrades
		d, _ := limiter.Take(context.Background(), r, 8)
		fmt.Println(d.Allowed, d.Limit.Name, d.Remaining)
	}
	// Output:
	// true free 2
	// true pro 984
}

func ExampleAllOf() {
	type request struct {
		User   string
		Labels []int // of which each has a limit
	}
	clock := new(ratelimittest.Clock)
	layers := make([]ratelimit.Layer[request], 1000)
	for i := range layers {
		label := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(i+1)).Named(fmt.Sprint("label-", i)),
			&ratelimit.Options[string]{Clock: clock}))
		layers[i] = ratelimit.By(label, func(r request) (string, error) { return r.User, nil })
	}
	limiter, err := ratelimit.AllOf(
		func(r request, which []int) []int { return append(which, r.Labels...) }, layers...)
	if err != nil {
		panic(err)
	}
	for range 4 {
		d, _ := limiter.Take(context.Background(), request{"ann", []int{2, 7, 500}}, 1)
		fmt.Println(d.Allowed, d.Limit.Name, d.Remaining)
	}
	// Output:
	// true label-2 2
	// true label-2 1
	// true label-2 0
	// false label-2 0
}

func ExampleLayered_Peek() {
	clock := new(ratelimittest.Clock)
	users := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(10), 5),
		&ratelimit.Options[string]{Clock: clock}))
	limiter, err := ratelimit.All(ratelimit.By(users, func(user string) (string, error) { return user, nil }))
	if err != nil {
		panic(err)
	}
	limiter.Allow("ann", 4)
	for range 2 { // it changes nothing
		d, _ := limiter.Peek("ann", 2)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
	}
	// Output:
	// false 1 100ms
	// false 1 100ms
}

func ExampleKeyed_Peek() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(5)),
		&ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	limiter.Allow("ann", 3)
	d, _ := limiter.Peek("ann", 1)
	fmt.Println(d.Allowed, d.Remaining, d.ResetAfter)
	// Output: true 2 1m0s
}
