package ratelimittest_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// The config has functions to make the engine's limiters and to
// move their time. Use Check outside of tests, and Run in a test.
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

// hasty returns a RetryAfter that is a nanosecond too short.
type hasty struct {
	ratelimit.Limiter[string]
}

func (h hasty) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	d, err := h.Limiter.Take(ctx, key, cost)
	if !d.Allowed {
		d.RetryAfter--
	}
	return d, err
}

// A failure contains the broken promise, and the calls before it.
func ExampleCheck_failure() {
	clock := new(ratelimittest.Clock)
	err := ratelimittest.Check(ratelimittest.Config{
		Seed:  1,
		Clock: clock,
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
			return hasty{l}, err
		},
	})
	first, _, _ := strings.Cut(err.Error(), " burst")
	fmt.Println(first)
	// Output: ratelimittest: promise 1 (RetryAfter is true) is broken by token-bucket 3/s
}
