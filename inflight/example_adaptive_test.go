package inflight_test

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
)

// The limit follows the capacity of the backend, between 1 and 200, and starts at 20.
func ExampleGradient() {
	limiter := ratelimit.Must(inflight.New(200, &inflight.Options[string]{Adaptive: inflight.Gradient(nil)}))
	permit, err := limiter.TryAcquire("backend", 1)
	if err != nil {
		return // shed
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

// For a backend whose latency varies by itself: windows of 100 outcomes, latency up to twice its
// baseline, and never fewer than 5 at once.
func ExampleGradientOptions() {
	adaptive := inflight.Gradient(&inflight.GradientOptions{Window: 100, Tolerance: 2, Headroom: 8, Min: 5, Start: 50})
	limiter := ratelimit.Must(inflight.New(200, &inflight.Options[string]{Adaptive: adaptive}))
	permit, err := limiter.TryAcquire("backend", 1)
	if err != nil {
		return // shed
	}
	defer permit.Release()
	stats, _ := limiter.Stats("backend")
	fmt.Println(stats.Limit, "of", stats.Bound)
	// Output: 50 of 200
}

// Callers give up after two seconds: slower answers lower the limit, however long they last.
func ExampleVegasOptions() {
	algorithm := inflight.Vegas(&inflight.VegasOptions{Timeout: 2 * time.Second, Start: 10})()
	for range 6 {
		sample := inflight.Sample{RTT: 3 * time.Second, Served: 3 * time.Second, InFlight: 10}
		fmt.Print(algorithm.Update(sample), " ")
	}
	// Output: 9 8 7 7 6 5
}

// A window whose mean latency is above 500 ms is too slow.
func ExampleAIMD() {
	algorithm := inflight.AIMD(&inflight.AIMDOptions{Timeout: 500 * time.Millisecond, Start: 10})()
	for _, rtt := range []time.Duration{100, 100, 900, 900} {
		sample := inflight.Sample{RTT: rtt * time.Millisecond, InFlight: 10}
		fmt.Print(algorithm.Update(sample), " ")
	}
	// Output: 13 16 14 8
}

// halving is an algorithm of one's own.
type halving struct{ limit int }

func (h *halving) Update(s inflight.Sample) int {
	switch {
	case s.Dropped:
		h.limit = max(1, h.limit/2)
	case 2*s.InFlight >= h.limit: // else the callers are the bound
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
