package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
)

// Two at once for each tenant; what does not fit now is refused.
func ExampleLimiter_TryAcquire() {
	limiter := inflight.Must(inflight.New[string](2, nil))
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

// One at a time, and up to 10 callers wait for their turn.
func ExampleLimiter_Acquire() {
	limiter := inflight.Must(inflight.New(1, &inflight.Options[string]{MaxQueue: 10}))
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

// At most 10 units in flight over all tenants, of which each may have all while it is
// alone. When they wait for each other, a paying one gets three times as much.
func ExampleOptions_total() {
	limiter := inflight.Must(inflight.New(10, &inflight.Options[string]{
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

// A limit that is lowered cuts nobody off.
func ExampleLimiter_SetLimit() {
	limiter := inflight.Must(inflight.New[string](2, nil))
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
