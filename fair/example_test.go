package fair_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func ExampleNew() {
	weights := map[string]int{"gold": 3}
	clock := new(ratelimittest.Clock) // only for the example: a program omits it
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
	// the first again: false 900ms <nil>
}

// A middleware uses the limiter like any other. The tenant is the authenticated user.
func ExampleLimiter() {
	limiter, err := fair.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(2), 5), nil)
	if err != nil {
		log.Fatal(err)
	}
	tenant := func(r *http.Request) (string, error) {
		name, _, _ := r.BasicAuth() // an outer middleware has checked the password
		return name, nil
	}
	limit, err := httplimit.New(ratelimit.Map(limiter, tenant), nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	for _, name := range []string{"ann", "ann", "ann", "ann", "ann", "bob"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.SetBasicAuth(name, "secret")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(name, w.Code)
	}
	// Output:
	// ann 200
	// ann 200
	// ann 200
	// ann 200
	// ann 429
	// bob 200
}

// The upstream grants more. Spending stays.
func ExampleLimiter_SetLimit() {
	clock := new(ratelimittest.Clock)
	limiter := ratelimit.Must(fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), &fair.Options[string]{Clock: clock}))
	fmt.Println("spent:", limiter.Allow("ann", 8))
	before, _ := limiter.Peek(context.Background(), "bob", 5)
	err := limiter.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(100), 100))
	after, _ := limiter.Peek(context.Background(), "bob", 5)
	fmt.Println(before.Allowed, after.Allowed, err)
	fmt.Println("in debt:", limiter.Stats().InDebt)
	// Output:
	// spent: true
	// false true <nil>
	// in debt: 1
}
