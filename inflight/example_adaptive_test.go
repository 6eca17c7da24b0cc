package inflight_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
)

// The limit follows the backend's capacity, between 1 and 200, and starts at 20.
func ExampleLearn() {
	limiter := ratelimit.Must(inflight.New(200, &inflight.Options[string]{Adaptive: inflight.Learn(nil)}))
	permit, err := limiter.TryAcquire("backend", 1)
	if err != nil {
		return // shed the call
	}
	call := func() error { return nil }
	if err := call(); err != nil {
		permit.Done(inflight.Dropped) // a timeout, or a backend that reports overload
	} else {
		permit.Done(inflight.Success)
	}
	stats, _ := limiter.Stats("backend")
	fmt.Println(stats.Limit, "of", stats.Bound)
	// Output: 20 of 200
}

// Callers give up after two seconds. Later answers lower the limit.
func ExampleLearnOptions() {
	algorithm := inflight.Learn(&inflight.LearnOptions{Timeout: 2 * time.Second, Start: 10})()
	for range 6 {
		sample := inflight.Sample{RTT: 3 * time.Second, Served: 3 * time.Second, InFlight: 10}
		fmt.Print(algorithm.Update(sample), " ")
	}
	// Output: 9 8 7 7 6 5
}

// One backend has an unknown capacity. Its callers wait while they can still be served in time.
func ExampleProtect() {
	limiter, err := inflight.Protect[string](nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	permit, err := limiter.Acquire(ctx, "tenant-42", 1)
	if err != nil {
		return // refused, or too late
	}
	defer permit.Release()
	fmt.Println(limiter.Totals().InFlight, "of", limiter.Totals().Limit)
	// Output: 1 of 20
}

// An answer takes time in proportion to its tokens, so the limit learns from the time per token.
func ExamplePermit_DoneAmount() {
	limiter, err := inflight.Protect[string](nil)
	if err != nil {
		log.Fatal(err)
	}
	permit, err := limiter.TryAcquire("model", 1)
	if err != nil {
		return // shed the call
	}
	tokens, err := 812, error(nil) // the answer's tokens
	if err != nil {
		permit.Done(inflight.Cancelled)
		return
	}
	permit.DoneAmount(inflight.Success, float64(tokens))
	fmt.Println(limiter.Totals().InFlight)
	// Output: 0
}

// halving is a custom algorithm.
type halving struct{ limit int }

func (h *halving) Update(s inflight.Sample) int {
	switch {
	case s.Dropped:
		h.limit = max(1, h.limit/2)
	case 2*s.InFlight >= h.limit: // otherwise the callers bound the work, not the limit
		h.limit++
	}
	return h.limit
}

func ExampleAlgorithm() {
	limiter := ratelimit.Must(inflight.New(100, &inflight.Options[string]{
		Adaptive: func() inflight.Algorithm { return &halving{20} },
	}))
	_, err := limiter.TryAcquire("backend", 1)
	fmt.Println(err)
	// Output: <nil>
}
