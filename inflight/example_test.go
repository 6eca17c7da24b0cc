package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
)

// Each tenant may have two calls in flight. A call without room is refused.
func ExampleLimiter_TryAcquire() {
	limiter := ratelimit.Must(inflight.New[string](2, nil))
	for i := range 3 {
		permit, err := limiter.TryAcquire("tenant-42", 1)
		if errors.Is(err, ratelimit.ErrLimited) {
			fmt.Println(i, "not now")
			continue
		}
		fmt.Println(i, "at work")
		defer permit.Release()
	}
	// Output:
	// 0 at work
	// 1 at work
	// 2 not now
}

// One call works at a time, and up to 10 callers wait for their turn.
func ExampleLimiter_Acquire() {
	limiter := ratelimit.Must(inflight.New(1, &inflight.Options[string]{MaxQueue: 10}))
	work := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		permit, err := limiter.Acquire(ctx, "tenant-42", 1)
		if err != nil {
			return err
		}
		defer permit.Release()
		return nil // the work
	}
	fmt.Println(work(), work())
	// Output: <nil> <nil>
}

// At most 10 units are in flight over all tenants. A tenant alone may have all of
// them. When tenants wait for each other, a paying one gets three times as much.
func ExampleOptions_total() {
	limiter := ratelimit.Must(inflight.New(10, &inflight.Options[string]{
		Total:    10,
		MaxQueue: 100,
		Weight: func(tenant string) int {
			if tenant == "paying" {
				return 3
			}
			return 1
		},
	}))
	large, _ := limiter.TryAcquire("free", 8)
	_, err := limiter.TryAcquire("paying", 3)
	fmt.Println(err)
	large.Release()
	permit, err := limiter.TryAcquire("paying", 3)
	fmt.Println(err)
	permit.Release()
	// Output:
	// inflight: no permit is free
	// <nil>
}

// Lowering a limit does not interrupt work in flight.
func ExampleLimiter_SetLimit() {
	limiter := ratelimit.Must(inflight.New[string](2, nil))
	first, _ := limiter.TryAcquire("a", 2)
	limiter.SetLimit(1)
	stats, _ := limiter.Stats("a")
	fmt.Println(stats.InFlight, "in flight, limit", stats.Limit)
	first.Release()
	_, err := limiter.TryAcquire("a", 2)
	fmt.Println(errors.Is(err, ratelimit.ErrExceedsLimit))
	// Output:
	// 2 in flight, limit 1
	// true
}

// Plans change. Refresh gives tracked keys their new limits, and SetTotal changes the server's total.
func ExampleLimiter_Refresh() {
	plans := map[string]int{"a": 1}
	limiter := ratelimit.Must(inflight.New(5, &inflight.Options[string]{
		Total:    8,
		LimitFor: func(tenant string) int { return plans[tenant] }, // for all other keys it returns 0: New's limit
	}))
	for _, tenant := range []string{"a", "b"} {
		permit, _ := limiter.TryAcquire(tenant, 1)
		defer permit.Release()
	}
	plans["a"] = 3
	limiter.Refresh("a")
	fmt.Println(limiter.SetTotal(4))
	all := limiter.Snapshot()
	fmt.Println("a:", all["a"].InFlight, "of", all["a"].Limit)
	fmt.Println("b:", all["b"].InFlight, "of", all["b"].Limit)
	totals := limiter.Totals()
	fmt.Println("all:", totals.InFlight, "of", totals.Limit)
	// Output:
	// <nil>
	// a: 1 of 3
	// b: 1 of 5
	// all: 2 of 4
}
