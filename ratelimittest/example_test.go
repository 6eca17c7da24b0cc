package ratelimittest_test

import (
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// An engine is tested by telling the suite how to make its limiters and how to move
// their time. Check is for use outside of a test; inside of one, use Run.
func ExampleCheck() {
	clock := new(ratelimittest.Clock)
	err := ratelimittest.Check(ratelimittest.Config{
		Clock:     clock,
		Histories: 10,
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			return ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
		},
	})
	fmt.Println(err)
	// Output: <nil>
}

// A failure says which promise broke, and what led there. This engine takes its time in
// microseconds, but was said to be exact to the nanosecond.
func ExampleCheck_failure() {
	config := engine(1000, 1)
	config.Seed = 1
	err := ratelimittest.Check(config)
	first, _, _ := strings.Cut(err.Error(), " burst")
	fmt.Println(first)
	// Output: ratelimittest: promise 1 (RetryAfter is true) is broken by token-bucket 3/s
}
